"""What a relay costs a process whose keys change in others: every process hears of every change.

The process that is measured hears of keys that none of its operations watch, and then of keys that one operation each
watches, which completes. The publisher is a process of its own, which has the connections of all other processes too;
between threads it is a thread. CPU is that of the thread that hears. Afterwards the broker is flooded.
"""

import asyncio
import gc
import math
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from purgatory import DelayedOperationPurgatory
from purgatory.bench.case import Case, Figures, Metric, Scenario
from purgatory.bench.relay import publisher
from purgatory.bench.relay.brokers import POSTGRES, REDIS, THREADS, Serving, missing, serving
from purgatory.bench.scenarios.pending import TIMEOUT, Operation
from purgatory.relay import Relay

_PATIENCE: Final = 10.0
"""Seconds in which all has to be heard after the publisher's end."""


class Wait(Operation):
    """Completes when its key is checked first. What the answer to a client costs is measured elsewhere."""

    __slots__ = ("is_new",)

    def __init__(self) -> None:
        super().__init__(TIMEOUT)
        self.is_new = True

    def try_complete(self) -> bool:
        return not self.is_new and self.force_complete()


async def run(case: Case) -> Figures:
    """Hear of keys that are not watched, and of keys that are; then flood the broker."""
    with serving(case.implementation, case.parameters["times"]) as served:
        heard_us, server_us = await _hear(served, case.parameters, "other")
        woken_us, _ = await _hear(served, case.parameters, "key")
        async with AsyncExitStack() as stack:
            for _ in range(case.parameters["processes"]):
                await stack.enter_async_context(served.broker.connect(len))
            taken = await asyncio.to_thread(served.flood)
    return {
        "heard_us": heard_us,
        "woken_us": woken_us,
        "a_core": 1e6 / heard_us,
        "server_us": server_us,
        "taken": taken,
    }


async def _hear(served: Serving, parameters: Any, watched: str) -> tuple[float, float]:
    """The CPU of a change in this process, and of a message in the server, in µs."""
    messages, keys, processes, seconds = (
        parameters[name] for name in ("messages a second", "keys each", "processes", "seconds")
    )
    total = messages * seconds
    purgatory = DelayedOperationPurgatory()
    async with purgatory, Relay(purgatory, broker=served.broker) as relay:
        while relay.statistics().unchecked:
            await asyncio.sleep(0.01)
        waits = [purgatory.try_complete_else_watch(Wait(), [f"{watched}-{n}"]) for n in range(total * keys)]
        for wait in waits:
            wait.is_new = False
        gc.collect()
        gc.freeze()  # collections of the objects that exist already are not measured
        publishing = asyncio.ensure_future(_publish(served, messages, keys, seconds, processes))
        missed = await _until(relay, 1, publishing, 0.001)
        cpu, server = time.thread_time(), served.cpu()
        await _until(relay, total, publishing, 0.02)
        cpu, server = time.thread_time() - cpu, served.cpu() - server
        await publishing
        if purgatory.num_delayed != (0 if watched == "key" else total * keys):
            # As soon as it is behind by 10,000 keys, it checks all that are watched.
            raise RuntimeError(f"this machine is too slow to hear of {messages * keys:,} changes a second")
    return 1e6 * cpu / ((total - missed) * keys), 1e6 * server / (total - missed)


async def _until(relay: Relay, messages: int, publishing: "asyncio.Future[None]", pause: float) -> int:
    """Look each `pause` until so many messages are heard and their keys checked. Returns how many are heard."""
    until = math.inf
    while (heard := relay.statistics()).received < messages or heard.unchecked:
        await asyncio.sleep(pause)
        if publishing.done():
            publishing.result()
            until = min(until, time.monotonic() + _PATIENCE)
            if time.monotonic() > until:
                raise RuntimeError(f"of {messages} messages only {heard.received} were heard")
    return heard.received


async def _publish(served: Serving, *numbers: int) -> None:
    if not served.url:
        await asyncio.to_thread(lambda: asyncio.run(publisher.publish(served.broker, *numbers)))
        return
    command = [sys.executable, "-P", str(Path(publisher.__file__)), served.url, *map(str, numbers)]
    process = await asyncio.create_subprocess_exec(*command)
    if await process.wait():
        raise RuntimeError("the publisher has failed")


RELAY = Scenario(
    name="relay",
    title="Relay: a process hears of all changes",
    implementations=(REDIS, POSTGRES, THREADS),
    full=[
        {"messages a second": messages, "keys each": keys, "processes": processes, "seconds": 4, "times": 20_000}
        for messages, keys, processes in ((1_000, 1, 2), (5_000, 1, 2), (100, 100, 2), (1_000, 1, 16))
    ],
    quick=[{"messages a second": 500, "keys each": 2, "processes": 2, "seconds": 1, "times": 2_000}],
    main=run,
    loops=("uvloop",),
    metrics=(
        Metric("heard_us", "CPU of a change that is not watched", "µs"),
        Metric("woken_us", "CPU of a change that completes an operation", "µs"),
        Metric("a_core", "changes that take a core, not watched", "a second"),
        Metric("server_us", "the server's CPU, a message", "µs"),
        Metric("taken", "messages that the server takes when flooded", "a second"),
    ),
    missing=missing,
)
