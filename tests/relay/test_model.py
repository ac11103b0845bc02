"""The relay against a broker that loses connections and messages at any point: no wake-up is lost."""

import asyncio
from contextlib import AsyncExitStack

from hypothesis import event, given
from hypothesis import strategies as st

from tests.relay.relays import Grown, MemoryBroker, Process, collect_faults, pass_time, skipping

STEPS = [*["grow", "watch", "send", "lose", "freeze", "fail"] * 4, "away", "back", "turn", "wait"]
"""The last ones are rarer."""


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(STEPS), st.integers(0, 2), st.sampled_from("abcd")), min_size=10, max_size=60
    ),
    max_keys=st.sampled_from([1, 2, 100]),
)
@skipping
async def test_every_operation_whose_condition_holds_completes_however_often_connections_are_lost(
    steps: list[tuple[str, int, str]], max_keys: int
) -> None:
    collect_faults()  # of refreshes that fail
    state: dict[str, int] = {}
    broker = MemoryBroker()
    waiting: list[Grown] = []
    async with AsyncExitStack() as stack:
        processes = [
            await stack.enter_async_context(Process(state, broker, max_keys=max_keys, heartbeat=3.0)) for _ in range(3)
        ]
        for step, number, key in steps:
            process = processes[number]
            connections = broker.connections[number : number + 1]
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
            elif step == "lose":
                for connection in connections:
                    connection.lose()
            elif step == "freeze":
                for connection in connections:
                    connection.deaf = True
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
