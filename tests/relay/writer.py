"""A process that changes a state which it shares with others, and tells them so by a relay.

    python -m tests.relay.writer BROKER STATE NAME

When it is connected, and after each number on stdin, which makes it write so many more keys, `NAME-0`, `NAME-1`, …,
each once, it says how many it has written. It ends with its input, when the broker has taken all of them.
"""

import asyncio
import sqlite3
import sys
from pathlib import Path

from purgatory.relay import Broker, Relay
from purgatory.relay.postgres import PostgresBroker
from purgatory.relay.redis import RedisBroker


class SharedNumbers:
    """Numbers in a file of SQLite, which several processes read and write. It need not survive the machine."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=60)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute("CREATE TABLE IF NOT EXISTS numbers (key TEXT PRIMARY KEY, number INTEGER NOT NULL)")

    def get(self, key: str, default: int) -> int:
        row = self._connection.execute("SELECT number FROM numbers WHERE key = ?", [key]).fetchone()
        return default if row is None else int(row[0])

    def __setitem__(self, key: str, number: int) -> None:
        self._connection.execute("INSERT OR REPLACE INTO numbers VALUES (?, ?)", [key, number])

    def close(self) -> None:
        self._connection.close()


def broker(url: str, channel: str = "purgatory") -> Broker:
    """The broker that listens at `url`."""
    return RedisBroker(url, channel) if url.startswith("redis") else PostgresBroker(url, channel)


async def write(url: str, path: Path, name: str) -> None:
    numbers = SharedNumbers(path)
    written = 0
    async with Relay(broker=broker(url), heartbeat=2) as relay:
        _tell(written)
        while line := await asyncio.to_thread(sys.stdin.readline):
            for _ in range(int(line)):
                key = f"{name}-{written}"
                numbers[key] = 1
                relay.notify(key)
                written += 1
                await asyncio.sleep(0)
            _tell(written)
        await relay.flush()
    numbers.close()


def _tell(written: int) -> None:
    sys.stdout.write(f"{written}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
