"""A process that changes a state which it shares with others, and tells them so by a relay.

    python -m tests.relay.writer BROKER STATE NAME

When it is connected, and after each number on stdin, which makes it write so many more keys, `NAME-0`, `NAME-1`, …,
each once, it says how many it has written. It ends with its input, when the broker has taken all of them.
"""

import asyncio
import sys
from pathlib import Path

from purgatory.relay import Broker, PostgresBroker, RedisBroker, Relay


class SharedNumbers:
    """Numbers that several processes read and write: each is 1 as soon as there is a file for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str, default: int) -> int:
        return 1 if (self._folder / key).exists() else default

    def __setitem__(self, key: str, number: int) -> None:
        (self._folder / key).touch()


def broker(url: str, channel: str = "purgatory") -> Broker:
    """The broker that listens at `url`."""
    return RedisBroker(url, channel) if url.startswith("redis") else PostgresBroker(url, channel)


async def write(url: str, folder: Path, name: str) -> None:
    numbers = SharedNumbers(folder)
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


def _tell(written: int) -> None:
    sys.stdout.write(f"{written}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
