"""The core of streams, on SQLite, beside a naive model: lists of units in a dictionary, which are copied to fork."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from purgatory.streams.core import messages
from purgatory.streams.core.commands import Append, Create, Delete, Fork, Identity, Touch
from purgatory.streams.core.errors import (
    Conflict,
    Gone,
    Invalid,
    NotFound,
    SequenceGap,
    StaleEpoch,
    StreamClosed,
    StreamsError,
)
from purgatory.streams.core.messages import JSON
from purgatory.streams.core.state import Stream
from purgatory.streams.core.transaction import Transaction
from purgatory.streams.engine.cache import Chunk
from purgatory.streams.storage.database import Extent
from purgatory.streams.storage.sqlite import WritingDatabase
from tests.streams.serving import applied


@pytest.fixture(autouse=True)
def _small_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends of several rows."""
    monkeypatch.setattr(messages, "ROW", 8)
    monkeypatch.setattr(messages, "ROW_MESSAGES", 2)


IN_MEMORY = Path("/dev/shm")
"""A folder that waits for no disk, where there is one."""
PATHS = ["a", "b", "c/d", "e", "f", "g"]
TYPES = ["text/plain", JSON]


@dataclass
class Naive:
    kind: str
    units: list[Any]
    ends: list[int]
    """Where appends end."""
    config: tuple[Any, ...]
    ttl: int | None = None
    deadline: float | None = None
    closed: bool = False
    closed_by: tuple[str, int, int] | None = None
    seq: str | None = None
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)
    source: "Naive | None" = None
    forks: int = 0
    deleted: bool = False


def units_of(kind: str, body: bytes) -> list[Any]:
    if kind != JSON:
        return list(body)
    value = json.loads(body)
    return value if isinstance(value, list) else [value]


values = st.sampled_from([1, "é", None, [2, [3]], {"a": " , "}])
texts = st.one_of(
    st.lists(values, min_size=1, max_size=4).map(lambda each: json.dumps(each).encode()),
    st.sampled_from([b'{"x": 1.50}', b" 7 ", b"[ [ ] ]", b"[1 , 2]", b"[1,", b"[]", b"ab", b""]),
)
bodies = st.just(b"") | texts
OWN = "its own"
producers = st.none() | st.tuples(
    st.sampled_from(["p", "p", "p", "q"]),
    st.sampled_from([0, 0, 0, 0, 1, -1]),
    st.sampled_from([1, 1, 1, 1, 0, 0, -1, 2]),
)
"""Names, and how the epoch and the sequence number differ from the last ones."""
appends = st.lists(
    st.tuples(
        st.sampled_from([*[OWN] * 9, "text/plain", JSON, "Text/Plain; charset=utf-8", None]),
        texts,
        st.sampled_from([*[None] * 9, "1", "10", "2"]),
        producers,
        st.sampled_from([*[False] * 29, True]),
    ),
    min_size=1,
    max_size=8,
)
"""The content type, body and `Stream-Seq` of each, its producer, and whether it closes the stream."""


class Machine(RuleBasedStateMachine):
    """Streams in a database of SQLite, which is opened again now and then, and what they should be."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.model: dict[str, Naive] = {}
        self.folder = TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.exists() else None)
        self.open()
        self.transaction: Transaction | None = None
        """Of several commands."""

    def open(self) -> None:
        self.source = WritingDatabase(Path(self.folder.name) / "streams.sqlite")
        self.source.execute("PRAGMA synchronous = OFF")

    @rule()
    def restart(self) -> None:
        self.commit()
        self.source.close()
        self.open()

    def teardown(self) -> None:
        self.source.close()
        self.folder.cleanup()

    def run(self, command: Any) -> Any:
        """Apply a command, and return its result or exception."""
        transaction = self.transaction or Transaction(self.source, self.now)
        try:
            result = command.apply(transaction)
        except StreamsError as error:
            result = error
        if self.transaction is None:
            self.save(transaction)
        return result

    @rule()
    def begin_or_commit(self) -> None:
        if self.transaction is None:
            self.transaction = Transaction(self.source, self.now)
        else:
            self.commit()

    def commit(self) -> None:
        if self.transaction is not None:
            self.save(self.transaction)
            self.transaction = None

    def save(self, transaction: Transaction) -> None:
        with self.source.transaction(()):
            self.source.store(transaction)
        self.source.stored(transaction)
        with self.source.transaction(()):
            assert not self.source.drop_rows()

    # The model.

    def drop(self, path: str, naive: Naive) -> None:
        if naive.forks:
            naive.deleted = True
            naive.deadline = None
            return
        while True:
            self.model = {path: each for path, each in self.model.items() if each is not naive}
            if naive.source is None:
                return
            naive = naive.source
            naive.forks -= 1
            if not naive.deleted or naive.forks:
                return

    def at(self, path: str) -> Naive | None:
        naive = self.model.get(path)
        if naive is not None and naive.deadline is not None and naive.deadline <= self.now:
            self.drop(path, naive)
            return self.model.get(path)
        return naive

    # The rules.

    @initialize(kind=st.sampled_from(TYPES))
    def create_some(self, kind: str) -> None:
        for path in PATHS[:2]:
            self.create(path, kind, b"", False, None)

    @rule(
        path=st.sampled_from(PATHS[:4]),
        kind=st.sampled_from(TYPES),
        body=bodies,
        closed=st.sampled_from([False, False, False, True]),
        ttl=st.sampled_from([None, None, None, 1, 3]),
    )
    def create(self, path: str, kind: str, body: bytes, closed: bool, ttl: int | None) -> None:
        result = self.run(Create(path, kind, ttl, None, closed, body))
        config = kind, ttl, None
        if self.confirmed(path, config, closed, result):
            return
        try:
            units = units_of(kind, body) if body else []
        except ValueError:
            assert isinstance(result, Invalid)
            return
        assert result.new
        naive = Naive(kind, units, [len(units)], config, ttl, None, closed)
        self.touch(naive)
        self.model[path] = naive

    def confirmed(self, path: str, config: tuple[Any, ...], closed: bool, result: Any) -> bool:
        existing = self.at(path)
        if existing is None:
            return False
        if existing.deleted or existing.config != config or existing.closed != closed:
            assert isinstance(result, Conflict)
        else:
            assert not result.new
        return True

    @rule(
        path=st.sampled_from(PATHS[2:]),
        source=st.sampled_from(PATHS[:4]),
        offset=st.none() | st.integers(0, 12),
        more=st.integers(0, 4),
        kind=st.sampled_from([None, None, None, None, *TYPES]),
        body=bodies,
    )
    def fork(self, path: str, source: str, offset: int | None, more: int, kind: str | None, body: bytes) -> None:
        if offset is None:
            more = 0
        elif source in self.model:
            offset %= len(self.model[source].units) + 2
        result = self.run(Create(path, kind, None, None, False, body, Fork(source, offset, more)))
        place = source, None if offset is None else offset + more
        existing = self.at(path)
        if existing is not None:
            self.confirmed(path, (kind or existing.kind, None, place), False, result)
            return
        origin = self.at(source)
        if origin is None:
            assert isinstance(result, NotFound)
            return
        if origin.deleted or kind not in (None, origin.kind):
            assert isinstance(result, Conflict)
            return
        position = len(origin.units) if offset is None else offset
        end = min((end for end in origin.ends if end > position), default=position)
        if position > len(origin.units) or position + more > end:
            assert isinstance(result, Invalid)
            return
        position += more
        try:
            units = units_of(origin.kind, body) if body else []
        except ValueError:
            assert isinstance(result, Invalid)
            return
        assert result.new
        inherited = origin.units[:position]
        ends = [end for end in origin.ends if end < position] + [position, position + len(units)]
        naive = Naive(origin.kind, inherited + units, ends, (origin.kind, None, place), origin.ttl, source=origin)
        origin.forks += 1
        self.touch(naive)
        self.model[path] = naive

    def touch(self, naive: Naive) -> None:
        if naive.ttl is not None:
            naive.deadline = self.now + naive.ttl

    @rule(path=st.sampled_from(PATHS[:4]), appends=appends)
    def append(self, path: str, appends: list[Any]) -> None:
        for kind, body, seq, place, close in appends:
            naive = self.model.get(path)
            media = kind if kind != OWN else "text/plain" if naive is None else naive.kind
            producer = None
            if place is not None:
                name, epochs, steps = place
                epoch, last = naive.producers.get(name, (0, -1)) if naive is not None else (0, -1)
                producer = Identity(name, max(0, epoch + epochs), 0 if epochs == 1 else max(0, last + steps))
            result = self.run(Append(path, media, body, seq, producer, close))
            expected = self.appended(path, media, body, seq, producer, close)
            if isinstance(expected, type):
                assert type(result) is expected
            else:
                assert (result.tail, result.closed, result.new, result.seq) == expected

    def appended(
        self, path: str, kind: str | None, body: bytes, seq: str | None, producer: Identity | None, close: bool
    ) -> Any:
        naive = self.at(path)
        if naive is None:
            return NotFound
        if naive.deleted:
            return Gone
        known = None if producer is None else naive.producers.get(producer.name)
        last_seq = None if producer is None else producer.seq
        stale = producer is not None and known is not None and producer.epoch < known[0]
        if naive.closed:
            again = producer is not None and naive.closed_by == (producer.name, producer.epoch, producer.seq)
            if again or (producer is None and close and not body):
                return len(naive.units), True, False, last_seq
            return StaleEpoch if stale else StreamClosed
        if body:
            if kind is None:
                return Invalid
            if kind.lower().partition(";")[0] != naive.kind:
                return Conflict
        elif not close:
            return Invalid
        if producer is not None:
            if stale:
                return StaleEpoch
            if known is None or producer.epoch > known[0]:
                if producer.seq:
                    return SequenceGap if known is None else Invalid
            elif producer.seq <= known[1]:
                return len(naive.units), False, False, known[1]
            elif producer.seq > known[1] + 1:
                return SequenceGap
        if seq is not None and naive.seq is not None and seq <= naive.seq:
            return Conflict
        units = []
        if body:
            try:
                units = units_of(naive.kind, body)
            except ValueError:
                return Invalid
            if not units:
                return Invalid
        self.touch(naive)
        naive.units = naive.units + units
        naive.ends = [*naive.ends, len(naive.units)]
        naive.seq = naive.seq if seq is None else seq
        if producer is not None:
            naive.producers[producer.name] = producer.epoch, producer.seq
        if close:
            naive.closed = True
            naive.closed_by = None if producer is None else (producer.name, producer.epoch, producer.seq)
        return len(naive.units), close, True, last_seq

    @rule(path=st.sampled_from(PATHS[:3]))
    def delete(self, path: str) -> None:
        result = self.run(Delete(path))
        naive = self.at(path)
        if naive is None:
            assert isinstance(result, NotFound)
        elif naive.deleted:
            assert isinstance(result, Gone)
        else:
            assert result is None
            self.drop(path, naive)

    @rule(path=st.sampled_from(PATHS))
    def touched(self, path: str) -> None:
        naive = self.model.get(path)
        self.run(Touch(path, self.now + 2))
        if naive is not None and naive.ttl is not None and naive.deadline is not None:
            naive.deadline = max(naive.deadline, self.now + 2)

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.5]))
    def wait(self, seconds: float) -> None:
        self.commit()
        self.now += seconds

    @precondition(lambda self: self.transaction is None)
    @invariant()
    def streams_are_as_they_should_be(self) -> None:
        for path in PATHS:
            naive = self.model.get(path)
            stream = self.source.stream(path)
            if stream is None:
                assert naive is None
                continue
            assert naive is not None
            assert (stream.tail, stream.closed, stream.deleted) == (len(naive.units), naive.closed, naive.deleted)
            assert (stream.references, stream.deadline) == (naive.forks, naive.deadline)
            for position in {0, stream.tail // 2, max(0, stream.tail - 1), stream.tail}:
                assert self.read(stream, position) == naive.units[position:]

    @precondition(lambda self: self.transaction is None)
    @invariant()
    def nothing_is_left_of_other_streams(self) -> None:
        streams = [self.source.stream(path) for path in self.model]
        stored = self.source.execute("SELECT stream FROM data UNION SELECT stream FROM producers")
        assert {number for (number,) in stored} <= {stream.id for stream in streams if stream is not None}

    def read(self, stream: Stream, position: int) -> Any:
        parts = self.source.read(stream.pieces(position), Extent(1_000_000, 1_000_000))
        assert [part.begin for part in parts] == [position, *(part.end for part in parts)][:-1] or not parts
        body = (
            Chunk(stream, position, stream.tail, parts).body() if parts else b"[]" if stream.media_type == JSON else b""
        )
        return json.loads(body) if stream.media_type == JSON else list(body)


def test_a_stream_that_is_deleted_by_the_transaction_that_made_it_leaves_nothing(writer: WritingDatabase) -> None:
    append = Append("a", "text/plain", b"x", None, Identity("p", 0, 0))
    applied(writer, Create("a", "text/plain"), append, Delete("a"))
    assert [writer.execute(f"SELECT * FROM {table}") for table in ("streams", "data", "producers")] == [[], [], []]


@pytest.mark.parametrize("together", [False, True])
def test_a_fork_ends_where_it_was_cut(writer: WritingDatabase, together: bool) -> None:
    transaction = Transaction(writer, 0.0)

    def run(command: Any) -> None:
        if together:
            command.apply(transaction)
        else:
            applied(writer, command)

    run(Create("a", JSON, body=b"[1, 2, 3, 4]"))
    run(Create("b", None, fork=Fork("a", 0, 2)))
    run(Append("b", JSON, b"[5, 6, 7]"))
    run(Append("b", JSON, b"8"))
    run(Create("c", None, fork=Fork("b", 0, 2)))
    run(Create("d", None, fork=Fork("b", 2, 3)))
    for position, units in ((0, 3), (2, 4), (5, 2), (6, 1)):
        with pytest.raises(Invalid):
            run(Create("e", None, fork=Fork("b", position, units)))


TestStreams = Machine.TestCase
TestStreams.settings = settings(max_examples=3 * settings().max_examples, deadline=None)
