"""Forks of forks: their depth is bounded, they share their lineage, and a long chain is dropped in steps."""

import asyncio
from collections import Counter
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from purgatory.streams.core import commands
from purgatory.streams.core.commands import Append, Create, Delete, Fork
from purgatory.streams.core.errors import Forbidden, NotFound
from purgatory.streams.core.state import Stream
from purgatory.streams.core.transaction import Transaction
from purgatory.streams.engine.streams import Streams
from purgatory.streams.settings import Settings
from purgatory.streams.storage.sqlite import FileDatabase, WritingDatabase
from tests.streams.memory import Memory
from tests.streams.serving import opened
from tests.streams.test_deletes import until_left

TEXT = "text/plain"


def creations(length: int) -> list[Create]:
    """A stream, a fork of it, a fork of that and so on, each with a byte more."""
    forks = [Create(f"{number}", None, body=b"x", fork=Fork(f"{number - 1}")) for number in range(1, length)]
    return [Create("0", TEXT, body=b"x"), *forks]


def chain(transaction: Transaction, length: int) -> list[Stream]:
    return [creation.apply(transaction).stream for creation in creations(length)]


async def until_gone(streams: Streams, left: int = 0) -> None:
    """Return when there are so few streams, deleted ones among them: the time-out of the test is the bound."""
    while await streams.store.read(lambda database: database.count()) > left:  # noqa: ASYNC110 - another thread's
        await asyncio.sleep(0.02)


def test_the_depth_of_forks_is_bounded() -> None:
    transaction = Transaction(Memory(), 0.0)
    streams = chain(transaction, 65)
    assert [len(stream.lineage) for stream in streams] == list(range(65))
    with pytest.raises(Forbidden, match="more than 64 streams: copy the data to a stream of its own"):
        Create("65", None, body=b"x", fork=Fork("64")).apply(transaction)
    assert "65" not in [stream.path for stream in transaction.added.values()]
    assert transaction.stream("64") == streams[64]
    # A fork that branches off before has fewer.
    assert len(Create("65", None, fork=Fork("64", 64)).apply(transaction).stream.lineage) == 64


def test_forks_share_their_lineage(tmp_path: Path) -> None:
    with closing(WritingDatabase(tmp_path / "streams.sqlite")) as database:
        transaction = Transaction(database, 0.0)
        for stream, fork in pairwise(chain(transaction, 60)[1:]):
            assert all(map(lambda one, other: one is other, stream.lineage, fork.lineage))
        Create("other", None, fork=Fork("58")).apply(transaction)
        with database.transaction(()):
            database.store(transaction)
        first, second = (FileDatabase.stream(database, path) for path in ("59", "other"))  # not the remembered ones
        assert first is not None
        assert second is not None
        assert first.lineage is second.lineage
        assert len(first.lineage) == 59


async def test_a_long_chain_is_dropped_in_steps(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_DROPPED", 10)
    removed: Counter[Transaction] = Counter()
    remove = Transaction.remove

    def counted(self: Transaction, stream: Stream) -> None:
        removed[self] += 1
        remove(self, stream)

    monkeypatch.setattr(Transaction, "remove", counted)
    async with opened(settings) as streams:
        for creation in creations(35):
            await streams.run(creation)
        known = await streams.find("34")
        known.drop_recent()
        assert (await streams.chunk(known, 0)).body() == 35 * b"x"
        for number in range(34):
            await streams.run(Delete(f"{number}"))
        assert not removed  # all are kept for the last one
        await streams.run(Delete("34"))
        with pytest.raises(NotFound):
            await streams.find("34")
        # The path of one that is still to be dropped can be used at once.
        await streams.run(Create("24", TEXT))
        await until_gone(streams, 1)
        assert (max(removed.values()), sum(removed.values())) == (10, 35)
        await until_left(streams, 0)


async def test_a_chain_that_was_half_dropped_goes_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_DROPPED", 2)
    with closing(WritingDatabase(tmp_path / "streams.sqlite")) as database:
        transaction = Transaction(database, 0.0)
        chain(transaction, 7)
        for number in range(7):
            Delete(f"{number}").apply(transaction)
        with database.transaction(()):
            database.store(transaction)
        assert database.execute("SELECT path, deadline FROM streams WHERE refs = 0") == [("4", 0.0)]
    async with opened(Settings(data=str(tmp_path))) as streams:
        with pytest.raises(NotFound):
            await streams.run(Append("4", TEXT, b"x"))
        streams.look_for_due()
        await until_gone(streams)
