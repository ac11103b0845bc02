"""The store's threads: batches, commands that fail, callers that leave."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from purgatory.streams.admission import current_client
from purgatory.streams.core.commands import Append, Create, Delete
from purgatory.streams.core.errors import NotFound
from purgatory.streams.core.subscriptions import Claim, Subscribe, Unsubscribe
from purgatory.streams.core.transaction import Transaction
from purgatory.streams.engine.store import _LARGE, Turns
from purgatory.streams.engine.streams import Streams
from purgatory.streams.settings import Settings
from purgatory.streams.storage.database import Extent, StorageConflict, StorageError, StorageUnavailable
from purgatory.streams.storage.opener import FolderOpener
from purgatory.streams.storage.sqlite import FileDatabase, WritingDatabase
from tests.streams.serving import answers_held, applied, opened


@dataclass
class Fault:
    """A command that raises exceptions, one after the other, before it succeeds."""

    faults: list[Exception]
    applied: int = 0
    begun: threading.Event = field(default_factory=threading.Event)
    released: threading.Event | None = None
    """If there is one, the command waits for it."""
    alone: ClassVar[bool] = False
    paths: tuple[str, ...] = field(default=())

    def apply(self, transaction: Transaction) -> str:
        self.applied += 1
        self.begun.set()
        if self.released is not None:
            assert self.released.wait(60)
        if self.faults:
            raise self.faults.pop(0)
        return "done"


@asynccontextmanager
async def busy_writer(streams: Streams) -> AsyncIterator[None]:
    """The commands that tasks begin in the block make one transaction, at its end."""
    block = Fault([], released=threading.Event())
    blocking = asyncio.ensure_future(streams.run(block))
    assert await asyncio.to_thread(block.begun.wait, 60)
    yield
    await asyncio.sleep(0)
    assert block.released is not None
    block.released.set()
    assert await blocking == "done"


def execute(streams: Streams, sql: str) -> None:
    """Change the database behind the server's back."""
    writing: Any = streams.store._writing
    writing.connection.execute(sql)


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[Transaction]:
    transactions: list[Transaction] = []
    store = WritingDatabase.store

    def observed(self: WritingDatabase, transaction: Transaction) -> None:
        transactions.append(transaction)
        store(self, transaction)

    monkeypatch.setattr(WritingDatabase, "store", observed)
    return transactions


@pytest.mark.parametrize("error", [ValueError("x"), StorageError("y")])
async def test_a_command_that_fails_harms_no_other_of_its_transaction(streams: Streams, error: Exception) -> None:
    fault = Fault([error, error])
    commands: list[Any] = [Create("a", "text/plain"), fault, Append("a", "text/plain", b"hello")]
    async with busy_writer(streams):
        results = asyncio.gather(*map(streams.run, commands), return_exceptions=True)
    assert [type(each).__name__ for each in await results] == ["Created", type(error).__name__, "Appended"]
    assert fault.applied == 2
    assert (await streams.chunk(await streams.find("a"), 0)).body() == b"hello"


async def test_failures_of_the_database_are_logged_once(streams: Streams, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(2):
        for _ in range(3):
            with pytest.raises(StorageError):
                await streams.run(Fault([StorageError("the disk is full")]))
        await streams.run(Create(str(number), "text/plain"))
    assert caplog.messages == ["changes are not stored: the disk is full", "changes are stored again"] * 2


async def test_store_that_was_not_opened_can_be_closed(tmp_path: Path) -> None:
    opener = FolderOpener(tmp_path)
    await Streams(opener).close()
    opener.close()


@pytest.mark.parametrize(("conflicts", "result"), [(9, "done"), (10, "StorageConflict")])
async def test_conflicts_with_other_processes_are_tried_again(streams: Streams, conflicts: int, result: str) -> None:
    command = Fault([StorageConflict("z") for _ in range(conflicts)])
    found: Any
    (found,) = await asyncio.gather(streams.run(command), return_exceptions=True)
    assert found == result or type(found).__name__ == result
    assert command.applied == 10


async def test_a_database_that_is_lost_is_opened_again(streams: Streams) -> None:
    await streams.run(Create("a", "text/plain"))
    writing = streams.store._writing
    with pytest.raises(StorageUnavailable):
        await streams.run(Fault([StorageUnavailable("gone")]))
    assert (await streams.run(Append("a", "text/plain", b"x"))).tail == 1
    assert streams.store._writing is not writing

    lost: list[Any] = []

    def fail(database: Any) -> None:
        lost.append(database)
        raise StorageUnavailable("gone")

    with pytest.raises(StorageUnavailable):
        await streams.store.read(fail)
    assert lost[0] not in streams.store._opened
    reading = await asyncio.gather(*(streams.store.read(lambda each: each.count()) for _ in range(4)))
    assert reading == [1, 1, 1, 1]


async def test_a_caller_that_leaves_changes_nothing_of_the_command(streams: Streams) -> None:
    call = asyncio.ensure_future(streams.run(Create("a", "text/plain")))
    await asyncio.sleep(0)
    call.cancel()
    assert (await streams.run(Append("a", "text/plain", b"x"))).tail == 1


async def test_very_many_appends_are_read_in_parts(streams: Streams) -> None:
    await streams.run(Create("a", "text/plain"))
    for _ in range(25):
        await streams.run(Append("a", "text/plain", b"x"))
    for from_memory in (True, False):
        cached = await streams.find("a")
        if not from_memory:
            cached.drop_recent()
        ends = [0]
        while ends[-1] < 25:
            ends.append((await streams.chunk(cached, ends[-1], Extent(1000, 10))).end)
        assert ends == [0, 10, 20, 25]


async def test_read_of_data_that_is_deleted_meanwhile_raises_not_found(streams: Streams) -> None:
    await streams.run(Create("a", "text/plain", body=b"hello"))
    cached = await streams.find("a")
    cached.drop_recent()
    await streams.run(Delete("a"))
    with pytest.raises(NotFound):
        await streams.chunk(cached, 0)


async def test_readers_at_the_same_place_share_a_read_of_the_database(streams: Streams) -> None:
    await streams.run(Create("a", "text/plain", body=b"hello"))
    cached = await streams.find("a")
    cached.drop_recent()
    reads = [streams.wait(cached, 0, 30.0) for _ in range(3)]
    reads += [streams.wait(cached, 2, 30.0)]
    streams.reads.check_and_complete("a")
    chunks = [await each for each in reads]
    assert chunks[0] is chunks[1] is chunks[2]
    assert [each.body() for each in chunks if not isinstance(each, Exception)] == [b"hello"] * 3 + [b"llo"]


async def test_waiting_reader_gets_the_error_of_a_failing_database(streams: Streams) -> None:
    await streams.run(Create("a", "text/plain", body=b"hello"))
    cached = await streams.find("a")
    cached.drop_recent()
    await streams.run(Fault([]))
    execute(streams, "DROP TABLE data")
    assert isinstance(await streams.wait(cached, 0, 30.0), StorageError)


@pytest.mark.parametrize("command", [Append("a", "text/plain", b"x"), Delete("a")])
async def test_readers_of_a_stream_no_longer_in_memory_are_told_of_its_changes(streams: Streams, command: Any) -> None:
    await streams.run(Create("a", "text/plain"))
    cached = await streams.find("a")
    reads = [streams.wait(cached, 0, 60.0) for _ in range(2)]
    streams.cache.forget("a")
    await streams.run(command)
    found = [await each for each in reads]
    if isinstance(command, Delete):
        assert [type(each) for each in found] == [NotFound] * 2
    else:
        assert [each.body() for each in found if not isinstance(each, Exception)] == [b"x"] * 2


@pytest.mark.parametrize("again", [False, True])
async def test_look_up_sees_a_deletion_that_happens_meanwhile(streams: Streams, again: bool) -> None:
    await streams.run(Create("a", "text/plain", body=b"old"))
    streams.cache.forget("a")
    with answers_held(streams.store) as answers:
        finding = asyncio.ensure_future(streams.find("a"))
        answer = await answers.get()
    await streams.run(Delete("a"))
    if again:
        await streams.run(Create("a", "text/plain", body=b"another"))
    answer.set()
    if again:
        assert (await finding).stream.tail == 7
    else:
        with pytest.raises(NotFound):
            await finding


async def test_committed_stream_is_not_overridden_by_an_older_look_up(streams: Streams) -> None:
    await streams.run(Create("a", "text/plain"))
    cached = await streams.find("a")
    read = streams.wait(cached, 0, 60.0)
    streams.cache.forget("a")
    execute(streams, "DELETE FROM streams")
    with answers_held(streams.store) as answers:
        streams.readers.look("a")
        answer = await answers.get()
    streams.cache._cached["a"] = cached
    answer.set()
    await streams._background.join()
    assert not read.done()
    read.cancel()


async def test_reader_gets_the_error_of_a_look_up_that_fails(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    await streams.run(Create("a", "text/plain"))
    read = streams.wait(await streams.find("a"), 0, 60.0)
    streams.cache.forget("a")

    def stream(self: Any, path: str) -> Any:
        raise StorageError("no")

    monkeypatch.setattr(FileDatabase, "stream", stream)
    streams.readers.look("a")
    streams.readers.look("a")
    assert isinstance(await read, StorageError)


async def test_reads_prolong_a_stream_and_few_of_them_are_stored(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(streams._opener, "now", lambda: now)
    await streams.run(Create("a", "text/plain", 40))
    stored = []
    for _ in range(300):
        now += 0.1
        cached = await streams.find("a")
        streams.touch(cached)
        await streams._background.join()
        stored.append(streams.cache._cached["a"].stream.deadline)
        assert stored[-1] is not None
        assert 40 <= stored[-1] - now <= 41
    assert len(set(stored)) < 45
    now += 39.9
    await streams.run(Append("a", "text/plain", b"x"))
    now += 39.9
    await streams.find("a")
    now += 0.2
    with pytest.raises(NotFound):
        await streams.find("a")


async def test_expiry_times_that_come_during_a_scan_are_kept(streams: Streams) -> None:
    streams.look_for_due()
    while not streams._alarm._looking:  # noqa: ASYNC110 - a callback's
        await asyncio.sleep(0)
    streams._alarm.at(streams.now() + 30)
    streams._alarm.at(streams.now() + 3)
    while streams._alarm._looking:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert streams._alarm._handle is not None
    assert 0 < streams._alarm._handle_at - asyncio.get_running_loop().time() <= 3


async def test_a_deadline_is_looked_at_now_and_then_as_clocks_are_set(streams: Streams) -> None:
    assert streams._alarm._handle is None  # there is nothing to look at
    await streams.run(Create("a", "text/plain", ttl=3600))
    assert streams._alarm._handle is not None
    assert 0 < streams._alarm._handle_at - asyncio.get_running_loop().time() <= 5


async def test_closed_store_refuses_commands(tmp_path: Path) -> None:
    async with opened(Settings(data=str(tmp_path))) as streams:
        pass
    with pytest.raises(StorageUnavailable):
        await streams.run(Create("a", "text/plain"))
    streams.look_for_due()
    assert not streams._alarm._looking


async def test_failed_scan_for_expired_streams_is_repeated(streams: Streams, caplog: pytest.LogCaptureFixture) -> None:
    execute(streams, "ALTER TABLE streams RENAME TO hidden")
    streams.look_for_due()
    while "a background task" not in caplog.text:  # noqa: ASYNC110 - a log tells no event
        await asyncio.sleep(0.01)
    assert streams._alarm._handle is not None
    execute(streams, "ALTER TABLE hidden RENAME TO streams")


async def test_clients_take_turns_to_write(streams: Streams) -> None:
    await streams.run(Create("a", "text/plain"))
    done: list[str] = []

    async def write(client: str, data: bytes) -> None:
        current_client.set(client)
        await streams.run(Append("a", "text/plain", data))
        done.append(client)

    async with asyncio.TaskGroup() as tasks, busy_writer(streams):
        for number in range(1000):
            tasks.create_task(write("greedy", b"%d " % number))
        tasks.create_task(write("other", b"me too "))
    assert done.index("other") < 260  # with the first full transaction, and not after a thousand commands
    data = (await streams.chunk(await streams.find("a"), 0)).body().replace(b"me too ", b"")
    assert data.split() == [b"%d" % number for number in range(1000)]


@pytest.mark.parametrize(("bound", "value"), [("_LONG", -1.0), ("_LARGE", 1)])
async def test_a_transaction_that_takes_long_or_is_large_is_stored_before_it_is_full(
    streams: Streams, transactions: list[Transaction], monkeypatch: pytest.MonkeyPatch, bound: str, value: float
) -> None:
    async with busy_writer(streams):
        monkeypatch.setattr(f"purgatory.streams.engine.store.{bound}", value)
        creations = [
            asyncio.create_task(streams.run(Create(f"s{number}", "text/plain", body=b"x"))) for number in range(5)
        ]
    assert all([(await each).new for each in creations])
    assert [len(each.added) for each in transactions] == [1] * 5


async def test_clients_take_turns_to_read(streams: Streams) -> None:
    release = threading.Event()
    order: list[str] = []

    async def read(client: str) -> None:
        current_client.set(client)
        await streams.store.read(lambda database: release.wait(60))
        order.append(client)

    async with asyncio.TaskGroup() as tasks:
        greedy = [tasks.create_task(read("greedy")) for _ in range(100)]
        await asyncio.sleep(0)
        tasks.create_task(read("other"))
        await asyncio.sleep(0)
        for each in greedy[50:]:
            each.cancel()
        await asyncio.sleep(0)
        release.set()
    assert order.index("other") < 8
    assert (streams.store._reading, bool(streams.store._reads)) == (0, False)


async def test_a_read_that_is_cancelled_when_its_turn_has_come_passes_it_on(streams: Streams) -> None:
    release = threading.Event()
    first = [asyncio.ensure_future(streams.store.read(lambda database: release.wait(60))) for _ in range(4)]
    await asyncio.sleep(0)
    second, third = (asyncio.ensure_future(streams.store.read(lambda database: 3)) for _ in range(2))
    await asyncio.sleep(0)
    streams.store._pass_turn()  # as a read that ends does
    second.cancel()
    release.set()
    assert await third == 3
    await asyncio.gather(*first)


@pytest.mark.parametrize("wrong", [-3600.0, 3600.0])
def test_database_finds_what_a_wrong_clock_has_left(writer: WritingDatabase, wrong: float) -> None:
    now = 10_000.0
    applied(writer, Create("wakes", "application/json"), now=now + wrong)
    applied(writer, Subscribe("s", "pull-wake", "e/*", (), None, "wakes", 3.0, None), now=now + wrong)
    applied(writer, Create("e/1", "text/plain", body=b"a"), Claim("s", "worker"), now=now + wrong)
    assert [writer.due(time)[1] for time in (now, now + wrong)] == [["s"], []]


def test_a_file_that_cannot_be_opened_is_an_error_of_storage(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="the database failed: unable to open database file"):
        WritingDatabase(tmp_path)


def test_what_is_put_back_keeps_its_turn() -> None:
    """A client whose items take so long that each ends a transaction does not come first again and again."""
    turns: Turns[str] = Turns()
    for item in ("slow 1", "slow 2", "slow 3", "slow 4", "one", "two"):
        turns.add(item.split()[0], item)
    order = []
    while turns:
        first, *rest = turns.take(256)
        order.append(first)
        turns.put_back([(item.split()[0], item) for item in rest])
    assert order == ["slow 1", "one", "two", "slow 2", "slow 3", "slow 4"]


async def test_deletions_of_large_subscriptions_are_several_transactions(
    streams: Streams, transactions: list[Transaction], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are smaller by the same factor: a subscription may have 10,000 streams."""
    monkeypatch.setattr("purgatory.streams.engine.store._LARGE", _LARGE // 100)
    paths = tuple(f"s{number}" for number in range(100))
    for number in range(6):
        await streams.run(Subscribe(f"{number}", "pull-wake", None, paths, None, "w", 30.0, None))
    transactions.clear()
    await asyncio.gather(*[streams.run(Unsubscribe(f"{number}")) for number in range(6)])
    unlinked = [len(each.unlinked) for each in transactions]
    assert sum(unlinked) == 6
    assert max(unlinked) <= 3
