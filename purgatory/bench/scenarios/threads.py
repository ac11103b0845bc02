"""The loop's work for changes of one key that another thread announced while the loop was busy.

The calls of `check_and_complete_threadsafe` for one key make one pass. The alternative is the usual way: a
`loop.call_soon_threadsafe` for each change, with a callback that tests the condition.
"""

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from typing import Final

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.bench import machine
from purgatory.bench.case import LOOPS, OURS, Case, Figures, Metric, Plot, Scenario
from purgatory.bench.stalls import Heartbeat

KEY: Final = "key"


class State:
    """A condition that becomes true with the last change, and a flag for a waiter that has noticed it."""

    def __init__(self) -> None:
        self.ready = False
        self.seen = False


class Wait(DelayedOperation[None]):
    __slots__ = ("state",)

    def __init__(self, state: State) -> None:
        super().__init__(3600.0)
        self.state: State = state

    def try_complete(self) -> bool:
        return self.state.ready and self.force_complete()

    def on_complete(self) -> None:
        self.state.seen = True


Announce = Callable[[], object]


def ours(state: State) -> Announce:
    purgatory = DelayedOperationPurgatory()
    purgatory.try_complete_else_watch(Wait(state), (KEY,))
    return lambda: purgatory.check_and_complete_threadsafe(KEY)


def call_soon(state: State) -> Announce:
    call = asyncio.get_running_loop().call_soon_threadsafe

    def look() -> None:
        if state.ready:
            state.seen = True

    return lambda: call(look)


IMPLEMENTATIONS: "Final[dict[str, Callable[[State], Announce]]]" = {OURS: ours, "call_soon_threadsafe": call_soon}


async def run(case: Case) -> Figures:
    """Keep the loop busy until all changes have been announced, and measure its work on them."""
    calls = case.parameters["calls"]
    loop = asyncio.get_running_loop()
    state = State()
    announce = IMPLEMENTATIONS[case.implementation](state)
    taken = loop.create_future()

    def flood() -> None:
        for _ in range(calls - 1):
            announce()
        state.ready = True
        announce()
        loop.call_soon_threadsafe(taken.set_result, None)  # runs after all announcements

    thread = threading.Thread(target=flood)
    gc.collect()
    gc.freeze()  # collections of the objects that exist already are not measured
    cpu = time.process_time()
    thread.start()
    thread.join()
    heartbeat = Heartbeat()
    await heartbeat.until(lambda: state.seen and taken.done())
    return {
        "us": 1e6 * (time.process_time() - cpu) / calls,
        "turn_ms": 1e3 * heartbeat.longest,
        "own_turn_ms": 1e3 * heartbeat.own,
    }


def measure(case: Case) -> Figures:
    return machine.run(case.loop, run(case))


def cases(quick: bool) -> list[Case]:
    return [
        Case("threads", implementation, loop, {"calls": 20_000 if quick else 200_000})
        for loop in LOOPS
        for implementation in IMPLEMENTATIONS
    ]


SCENARIO = Scenario(
    name="threads",
    title="Another thread announces changes while the loop is busy",
    cases=cases,
    measure=measure,
    metrics=(
        Metric("us", "CPU of a call, both threads", "µs", compared=True),
        Metric("turn_ms", "longest turn of the loop", "ms", compared=True),
        Metric("own_turn_ms", "the same without garbage collection", "ms"),
    ),
    plots=(Plot("turn", metric="turn_ms"),),
)
