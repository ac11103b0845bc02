"""A number that several processes increase and wait for: start it twice, or more often.

    python -m examples.several_processes wait redis://127.0.0.1           # in one terminal
    python -m examples.several_processes increase redis://127.0.0.1       # in another

The number is in a SQLite file that they share. Over a broker, Redis or `postgresql://…`, they tell each other that it
has changed. It needs the extra `relay`.
"""

import argparse
import asyncio
import sqlite3
from collections.abc import Collection
from contextlib import closing

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.relay import Broker, Relay

CREATE = "CREATE TABLE IF NOT EXISTS number (id INTEGER PRIMARY KEY, value INTEGER NOT NULL)"
INCREASE = "INSERT INTO number VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET value = value + 1"


class SharedNumber:
    """A number in a file, and the value that this process remembers of it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.value = 0

    async def read(self) -> None:
        self.value = await asyncio.to_thread(self._query)  # a database would block the loop

    async def increase(self) -> None:
        self.value = await asyncio.to_thread(self._query, INCREASE)

    async def refresh(self, keys: Collection[str]) -> None:
        """Read the number again, because another process has changed it. The relay calls this before it checks keys."""
        await self.read()

    def _query(self, change: str | None = None) -> int:
        with closing(sqlite3.connect(self.path)) as database, database:
            database.execute(CREATE)
            if change is not None:
                database.execute(change)
            found = database.execute("SELECT value FROM number").fetchone()
            return int(found[0]) if found else 0


class Reached(DelayedOperation[int]):
    """Waits until the number is at least `value`. Yields what it is then."""

    def __init__(self, number: SharedNumber, value: int, timeout: float) -> None:
        super().__init__(timeout)
        self.number = number
        self.value = value

    def try_complete(self) -> bool:
        return self.number.value >= self.value and self.force_complete()

    def on_complete(self) -> int:
        return self.number.value


def open_broker(url: str) -> Broker:
    """Return the broker at a URL."""
    if url.startswith(("postgresql://", "postgres://")):
        from purgatory.relay.postgres import PostgresBroker

        return PostgresBroker(url)
    from purgatory.relay.redis import RedisBroker

    return RedisBroker(url)


async def run(action: str, url: str, path: str, timeout: float) -> None:
    """Increase the number, or wait until another process has."""
    number = SharedNumber(path)
    purgatory = DelayedOperationPurgatory("number")
    async with purgatory, Relay(purgatory, broker=open_broker(url), refresh=number.refresh) as relay:
        if action == "increase":
            await number.increase()  # change the state first,
            relay.notify("number")  # then tell this process and the others
            print(f"the number is {number.value} now", flush=True)
            return
        await number.read()
        print(f"the number is {number.value}", flush=True)
        reached = purgatory.try_complete_else_watch(Reached(number, number.value + 1, timeout), ["number"])
        await number.read()  # again, because it may have changed just before it was watched
        purgatory.check_and_complete("number")
        value = await reached
        print(f"time is over at {value}" if reached.expired() else f"it has grown to {value}", flush=True)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser("several_processes", description="Increase a shared number, or wait for that.")
    parser.add_argument("action", choices=["wait", "increase"])
    parser.add_argument("broker", metavar="URL", help="redis://… or postgresql://…")
    parser.add_argument("--file", default="number.sqlite3", help="where the number is (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="to wait (default: 60)")
    options = parser.parse_args()
    asyncio.run(run(options.action, options.broker, options.file, options.timeout))


if __name__ == "__main__":
    main()
