"""The long-poll server's log, in SQLite and in PostgreSQL: both keep the same promises."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from examples.long_poll_server.log import MessageLog
from examples.long_poll_server.postgres import PostgresLog, prepare
from examples.long_poll_server.store import MAX_REPLICAS, PAGE_BYTES, Store, TooManyReplicas
from purgatory import DelayedOperationPurgatory
from tests.support.servers import PostgresServer

Opened: TypeAlias = Callable[[], AbstractAsyncContextManager[list[Store]]]
"""Opens a log: once for each of the processes that may share it."""


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    if request.param == "sqlite":
        return partial(_sqlite, tmp_path)
    postgres: PostgresServer = request.getfixturevalue("postgres")
    dsn = postgres.create_database()
    asyncio.run(prepare(dsn))
    return partial(_postgres, dsn)


@asynccontextmanager
async def _sqlite(directory: Path) -> AsyncIterator[list[Store]]:
    log = MessageLog(directory, lambda topic: None)
    await log.start()
    yield [log]
    await log.close()


@asynccontextmanager
async def _postgres(dsn: str) -> AsyncIterator[list[Store]]:
    logs = [PostgresLog(dsn, DelayedOperationPurgatory(), DelayedOperationPurgatory()) for _ in range(2)]
    for log in logs:
        await log.start()
    yield [*logs]
    for log in logs:
        await log.close()


async def _read(log: Store, topic: str, offset: int = 0, limit: int = 10_000) -> list[Any]:
    """The values of a page, whose offsets are looked at."""
    await log.refresh([topic])
    page, after = await log.read(topic, offset, log.end(topic), limit)
    messages = json.loads(page)
    assert [message["offset"] for message in messages] == list(range(offset, after))
    return [message["value"] for message in messages]


TOPICS = st.sampled_from("abc")
REPLICAS = st.sampled_from("rst")
NUMBERS = count()


class AgainstADictionary(RuleBasedStateMachine):
    """Topics are lists in a dictionary, and so are where replicas are."""

    opened: Opened

    @initialize()
    def start(self) -> None:
        self.prefix = f"{next(NUMBERS)}-"
        self.values: dict[str, list[Any]] = {}
        self.positions: dict[str, dict[str, int]] = {}
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.logs = self.runner.run(self.stack.enter_async_context(self.opened()))

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.run(self.stack.aclose())
            self.runner.close()

    @rule(messages=st.lists(st.tuples(TOPICS, st.integers(0, 1)), min_size=1, max_size=12))
    def append(self, messages: list[tuple[str, int]]) -> None:
        async def append_all() -> list[int]:
            # At the same time, through one process or the other.
            appends = [
                self.logs[which % len(self.logs)].append(self.prefix + topic, json.dumps([which, number]))
                for number, (topic, which) in enumerate(messages)
            ]
            return await asyncio.gather(*appends)

        appended: dict[str, dict[int, list[int]]] = {}
        for number, offset in enumerate(self.runner.run(append_all())):
            topic, which = messages[number]
            appended.setdefault(self.prefix + topic, {})[offset] = [which % len(self.logs), which, number]
        for topic, by_offset in appended.items():
            values = self.values.setdefault(topic, [])
            assert sorted(by_offset) == list(range(len(values), len(values) + len(by_offset)))
            for process in range(len(self.logs)):
                numbers = [number for _, (at, _, number) in sorted(by_offset.items()) if at == process]
                assert numbers == sorted(numbers), "what one process is given keeps its order"
            values += [[which, number] for _, (_, which, number) in sorted(by_offset.items())]

    @rule(topic=TOPICS, replica=REPLICAS, share=st.floats(0, 1), which=st.integers(0, 1))
    def acknowledge(self, topic: str, replica: str, share: float, which: int) -> None:
        topic = self.prefix + topic
        offset = round(share * len(self.values.get(topic, [])))
        self.runner.run(self.logs[which % len(self.logs)].acknowledge(topic, replica, offset))
        positions = self.positions.setdefault(topic, {})
        positions[replica] = max(offset, positions.get(replica, 0))

    @rule(topic=TOPICS, offset=st.integers(0, 30), limit=st.integers(1, 9))
    def read(self, topic: str, offset: int, limit: int) -> None:
        topic = self.prefix + topic
        for log in self.logs:
            found = self.runner.run(_read(log, topic, offset, limit))
            assert found == self.values.get(topic, [])[offset : offset + limit]

    @invariant()
    def every_process_knows_all_messages(self) -> None:
        if not hasattr(self, "logs"):
            return
        for log in self.logs:
            self.runner.run(log.refresh(self.values))
            for topic, values in self.values.items():
                assert log.end(topic) == len(values)
                for offset in range(len(values)):
                    acknowledged = sum(position > offset for position in self.positions.get(topic, {}).values())
                    assert log.count(topic, offset) == acknowledged
            assert log.topics >= len(self.values)


def test_a_log_does_what_a_dictionary_would(opened: Opened) -> None:
    machine = type("Machine", (AgainstADictionary,), {"opened": staticmethod(opened)})
    examples = settings().max_examples // 4
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=12))


@pytest.mark.asyncio(loop_factories=["asyncio"])
class TestEach:
    """The promises of each store."""

    async def test_messages_outlive_their_processes(self, opened: Opened) -> None:
        async with opened() as logs:
            assert await asyncio.gather(*(logs[0].append("news", str(n)) for n in range(5))) == list(range(5))
            await logs[0].refresh(["news"])
            incarnation = logs[0].incarnation
            assert incarnation
        async with opened() as logs:
            assert await _read(logs[-1], "news") == list(range(5))
            assert logs[-1].incarnation == incarnation
            assert logs[-1].topics == 1
            assert await logs[-1].append("news", "5") == 5

    async def test_closing_stores_all_given_messages(self, opened: Opened) -> None:
        async with opened() as logs:
            appending = asyncio.ensure_future(logs[0].append("news", "0"))
            await asyncio.wait([appending], timeout=0)
        assert await appending == 0
        async with opened() as logs:
            assert await _read(logs[0], "news") == [0]

    async def test_a_page_ends_with_the_message_that_makes_it_long(self, opened: Opened) -> None:
        async with opened() as logs:
            for length in (1, PAGE_BYTES // 2, PAGE_BYTES // 2, 1, PAGE_BYTES * 3, 1):
                await logs[0].append("news", json.dumps("x" * length))
            pages = []
            offset = 0
            while offset < 6:
                page = await _read(logs[0], "news", offset)
                pages.append(len(page))
                offset += len(page)
            assert pages == [3, 2, 1]
            await asyncio.gather(*(logs[0].append("small", "1") for _ in range(5000)))
            page = await _read(logs[0], "small")
            assert PAGE_BYTES / 30 < len(page) < PAGE_BYTES / 20

    async def test_a_topic_has_a_hundred_replicas_at_most(self, opened: Opened) -> None:
        async with opened() as logs:
            await logs[0].append("news", "0")
            for n in range(MAX_REPLICAS):
                await logs[n % len(logs)].acknowledge("news", f"r{n}", n % 2)
            for log in logs:
                with pytest.raises(TooManyReplicas):
                    await log.acknowledge("news", "one-more", 1)
                await log.acknowledge("news", "r0", 1)
                assert log.count("news", 0) == MAX_REPLICAS // 2 + 1
                await log.append("other", "0")
                await log.acknowledge("other", "one-more", 1)
