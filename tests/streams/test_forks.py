"""Forks of forks: their depth is bounded, they share their lineage, and a long chain is dropped in steps."""

import asyncio
from collections import Counter
from itertools import pairwise
from pathlib import Path

import httpx
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
from tests.streams.serving import Server, opened
from tests.streams.test_deletes import until_left
from tests.support.servers import PostgresServer

TEXT = "text/plain"
SENTENCE = "a fork may have the data of at most 64 streams: copy the data to a stream of its own"


def chain(transaction: Transaction, length: int) -> list[Stream]:
    """A stream, a fork of it, a fork of that and so on, each with a byte more."""
    creations = [Create("0", TEXT, body=b"x")]
    creations += [Create(f"{number}", None, body=b"x", fork=Fork(f"{number - 1}")) for number in range(1, length)]
    return [creation.apply(transaction).stream for creation in creations]


def test_the_depth_of_forks_is_bounded() -> None:
    transaction = Transaction(Memory(), 0.0)
    streams = chain(transaction, 65)
    assert [len(stream.lineage) for stream in streams] == list(range(65))
    with pytest.raises(Forbidden, match=SENTENCE):
        Create("65", None, body=b"x", fork=Fork("64")).apply(transaction)
    assert "65" not in [stream.path for stream in transaction.added.values()]
    assert transaction.stream("64") == streams[64]
    # A fork that branches off before has fewer.
    assert len(Create("65", None, fork=Fork("64", 64)).apply(transaction).stream.lineage) == 64


def test_too_deep_a_fork_is_a_403(server: Server, http: httpx.Client) -> None:
    statuses = Counter[int]()
    for number in range(70):
        headers = {"Stream-Forked-From": f"/v1/stream/deep/{number - 1}"} if number else {}
        response = http.put(f"/v1/stream/deep/{number}", headers=headers, content="x")
        statuses[response.status_code] += 1
        if response.status_code == 403:
            assert SENTENCE in response.text
    assert statuses == {201: 65, 403: 1, 404: 4}
    assert http.get("/v1/stream/deep/64").text == 65 * "x"


def test_forks_share_their_lineage(tmp_path: Path) -> None:
    database = WritingDatabase(tmp_path / "streams.sqlite")
    transaction = Transaction(database, 0.0)
    streams = chain(transaction, 60)
    for stream, fork in pairwise(streams[1:]):
        assert all(map(lambda one, other: one is other, stream.lineage, fork.lineage))
    Create("other", None, fork=Fork("58")).apply(transaction)
    with database.transaction(()):
        database.store(transaction)
    first, second = (FileDatabase.stream(database, path) for path in ("59", "other"))  # not the remembered ones
    assert first is not None
    assert second is not None
    assert first.lineage is second.lineage
    assert len(first.lineage) == 59
    database.close()


async def drop_a_chain(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain, of which all but the last are kept for it alone, goes in steps when that is deleted."""
    monkeypatch.setattr(commands, "_SPANS", 1000)
    monkeypatch.setattr(commands, "_DROPPED", 10)
    removed: Counter[Transaction] = Counter()
    remove = Transaction.remove

    def counted(self: Transaction, stream: Stream) -> None:
        removed[self] += 1
        remove(self, stream)

    monkeypatch.setattr(Transaction, "remove", counted)
    await streams.run(Create("0", TEXT, body=b"x"))
    for number in range(1, 95):
        await streams.run(Create(f"{number}", None, fork=Fork(f"{number - 1}"), body=b"x"))
    for number in range(94):
        await streams.run(Delete(f"{number}"))
    assert not removed
    await streams.run(Delete("94"))
    with pytest.raises(NotFound):
        await streams.find("94")
    # The path of one that is still to be dropped can be used at once.
    await streams.run(Create("84", TEXT))
    while await streams.store.read(lambda database: database.count()) > 1:  # noqa: ASYNC110 - another thread's
        await asyncio.sleep(0.02)
    assert sum(removed.values()) == 95
    assert max(removed.values()) == 10
    await until_left(streams, 0)


async def test_a_long_chain_is_dropped_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(Settings(data=str(tmp_path))) as streams:
        await drop_a_chain(streams, monkeypatch)


async def test_a_long_chain_is_dropped_in_steps_on_postgresql(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(Settings(database=postgres.create_database())) as streams:
        await drop_a_chain(streams, monkeypatch)


async def test_a_chain_that_was_half_dropped_goes_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_DROPPED", 2)
    database = WritingDatabase(tmp_path / "streams.sqlite")
    transaction = Transaction(database, 0.0)
    chain(transaction, 7)
    for number in range(7):
        Delete(f"{number}").apply(transaction)
    with database.transaction(()):
        database.store(transaction)
    assert database.execute("SELECT path, deadline FROM streams WHERE refs = 0") == [("4", 0.0)]
    database.close()
    async with opened(Settings(data=str(tmp_path))) as streams:
        with pytest.raises(NotFound):
            await streams.run(Append("4", TEXT, b"x"))
        streams.look_for_due()
        while await streams.store.read(lambda database: database.count()):  # noqa: ASYNC110 - another thread's
            await asyncio.sleep(0.02)
