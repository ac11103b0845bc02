"""A counter that several processes increase and wait for: start it twice, or more often.

    python -m examples.several_processes wait redis://127.0.0.1           # in one terminal
    python -m examples.several_processes increase redis://127.0.0.1       # in another

The state is in a SQLite file that they share, `counter.sqlite3`. Over a broker, Redis or `postgresql://…`, they tell
each other that it has changed. Its memory of the state is brought up to date by `refresh`, which the relay
awaits before it checks what has changed *elsewhere*; what it changes itself, it remembers itself. It needs the extra
`relay`.
"""

import argparse
import asyncio
import sqlite3
from collections.abc import Collection
from contextlib import closing

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.relay import Broker, Relay


class Counter:
    """The state, and what this process remembers of it."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database
        database.execute("CREATE TABLE IF NOT EXISTS counter (value INTEGER NOT NULL)")
        self.value = 0

    def increase(self) -> None:
        with self.database:
            self.database.execute("INSERT INTO counter VALUES (1)")
        self.read()

    def read(self) -> None:
        (self.value,) = self.database.execute("SELECT count(*) FROM counter").fetchone()

    async def refresh(self, keys: Collection[str]) -> None:
        """Called by the relay. Here all keys are the one counter."""
        self.read()


class Reached(DelayedOperation[int]):
    """Completes when the counter is at `value` or above it, with what it is then."""

    def __init__(self, counter: Counter, value: int, timeout: float) -> None:
        super().__init__(timeout)
        self.counter = counter
        self.value = value

    def try_complete(self) -> bool:
        return self.counter.value >= self.value and self.force_complete()

    def on_complete(self) -> int:
        return self.counter.value


def open_broker(url: str) -> Broker:
    """By its URL."""
    if url.startswith(("postgresql://", "postgres://")):
        from purgatory.relay.postgres import PostgresBroker

        return PostgresBroker(url)
    from purgatory.relay.redis import RedisBroker

    return RedisBroker(url)


async def run(what: str, url: str, path: str, timeout: float) -> None:
    """Wait until it has grown by one, or see to that."""
    with closing(sqlite3.connect(path)) as database:
        counter = Counter(database)
        purgatory = DelayedOperationPurgatory("counter")
        async with purgatory, Relay(purgatory, broker=open_broker(url), refresh=counter.refresh) as relay:
            if what == "increase":
                counter.increase()  # change the state, and what is remembered of it here,
                relay.notify("counter")  # then say so, here and to the others
                print(f"the counter is at {counter.value} now", flush=True)
                return
            counter.read()
            print(f"the counter is at {counter.value}", flush=True)
            reached = purgatory.try_complete_else_watch(Reached(counter, counter.value + 1, timeout), ["counter"])
            counter.read()  # once more: it may have changed just before it was watched
            purgatory.check_and_complete("counter")
            value = await reached
            print(f"time is over at {value}" if reached.expired() else f"it has grown to {value}", flush=True)


def main() -> None:
    """Do what the options say."""
    parser = argparse.ArgumentParser("several_processes", description="Increase a counter, or wait for that.")
    parser.add_argument("what", choices=["wait", "increase"])
    parser.add_argument("broker", metavar="URL", help="redis://… or postgresql://…")
    parser.add_argument("--counter", default="counter.sqlite3", metavar="FILE", help="default: %(default)s")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="to wait (default: 60)")
    options = parser.parse_args()
    asyncio.run(run(options.what, options.broker, options.counter, options.timeout))


if __name__ == "__main__":
    main()
