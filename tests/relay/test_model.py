"""The relay against a broker that loses connections and messages at any point: no wake-up is lost."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tests.relay.relays import Grown, MemoryBroker, Process, pass_time, run

PROCESSES = st.integers(0, 2)
KEYS = st.sampled_from(["a", "b", "c", "d"])
STEPS = st.one_of(
    st.tuples(st.sampled_from(["grow", "watch"]), PROCESSES, KEYS),
    st.tuples(st.sampled_from(["grow", "watch"]), PROCESSES, KEYS),
    st.tuples(st.just("send"), PROCESSES, KEYS),
    st.tuples(st.just("lose"), PROCESSES, KEYS),
    st.tuples(st.just("freeze"), PROCESSES, KEYS),
    st.tuples(st.just("fail"), PROCESSES, KEYS),
    st.tuples(st.sampled_from(["away", "back", "turn", "wait"]), PROCESSES, KEYS),
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@given(steps=st.lists(STEPS, min_size=10, max_size=60), max_keys=st.sampled_from([1, 2, 100]))
def test_every_operation_whose_condition_holds_completes_however_often_connections_are_lost(
    steps: list[tuple[str, int, str]], max_keys: int
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: None)  # refreshes that fail
        state: dict[str, int] = {}
        broker = MemoryBroker()
        waiting: list[Grown] = []
        async with AsyncExitStack() as stack:
            processes = [Process(state, broker, max_keys=max_keys, heartbeat=3.0) for _ in range(3)]
            for process in processes:
                await stack.enter_async_context(process)
            for step, number, key in steps:
                process = processes[number]
                if step == "grow":
                    process.grow(key)
                elif step == "watch":
                    waiting.append(process.watch(key))
                elif step == "send":
                    # Another client has changed it, perhaps a trigger of the database. Processes that are away miss it.
                    state[key] = state.get(key, 0) + 1
                    for payload in process.relay.payloads([key]):
                        for connection in broker.connections:
                            connection.arriving.put_nowait(payload)
                elif step in ("lose", "freeze") and number < len(broker.connections):
                    if step == "lose":
                        broker.connections[number].lose()
                    else:
                        broker.connections[number].deaf = True
                elif step == "fail":
                    process.failing += 1
                elif step == "away":
                    broker.away = True
                    for connection in list(broker.connections):
                        connection.lose()
                elif step == "back":
                    broker.away = False
                elif step == "turn":
                    await asyncio.sleep(0)
                elif step == "wait":
                    await pass_time(1.0)
            broker.away = False
            await pass_time(60.0)  # the longest waits between attempts, and two heartbeats, several times
            for process in processes:
                await process.relay.flush()
                statistics = process.relay.statistics()
                assert statistics.connected
                assert statistics.unpublished == statistics.unchecked == 0
            event(f"reconnects: {min(5, sum(process.relay.statistics().reconnects for process in processes))}")
            for operation in waiting:
                assert operation.done() == (state.get(operation.key, 0) >= operation.wanted)
            event(f"completed: {min(5, sum(operation.done() for operation in waiting))}")

    run(main)
