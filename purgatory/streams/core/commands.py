"""The commands that change streams. Each checks everything first, and then changes all or nothing."""

import json
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, TypeVar

from purgatory.streams.core import messages, wakes
from purgatory.streams.core.errors import (
    Conflict,
    Forbidden,
    Full,
    Gone,
    Invalid,
    NotFound,
    SequenceGap,
    StaleEpoch,
    StreamClosed,
)
from purgatory.streams.core.globs import MAX_SEGMENTS
from purgatory.streams.core.state import Producer, Span, Stream
from purgatory.streams.core.transaction import Transaction

T_co = TypeVar("T_co", covariant=True)
DEFAULT_TYPE = "application/octet-stream"
_SPANS: Final = 64
"""The most streams that the data of a fork may come from, because each fork stores a list of them."""
_DROPPED: Final = 64
"""The most streams of a chain of forks that a command drops."""


class Command(Protocol[T_co]):
    """A change of the state."""

    __slots__ = ()

    alone: ClassVar[bool] = False
    """Whether no stream may change meanwhile, in another process."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the command's streams, if they are known before it is applied."""
        return ()

    def apply(self, transaction: Transaction) -> T_co:
        """Apply the command to the transaction. Raises a `StreamsError` with nothing changed."""


def at(transaction: Transaction, path: str) -> Stream | None:
    """Return the stream at `path`, if it has not expired. It may be deleted."""
    stream = transaction.stream(path)
    if stream is None or stream.deadline is None or stream.deadline > transaction.now:
        return stream
    drop(transaction, stream)
    return transaction.stream(path)


def find(transaction: Transaction, path: str) -> Stream:
    """Return the stream at `path`. Raises `NotFound` or `Gone`."""
    stream = at(transaction, path)
    if stream is None:
        raise NotFound("there is no such stream")
    if stream.deleted:
        raise Gone("the stream is deleted")
    return stream


def touch(transaction: Transaction, stream: Stream) -> None:
    """Note a read or a write of a stream that may be changed."""
    if stream.ttl is not None:
        stream.deadline = transaction.now + stream.ttl


def drop(transaction: Transaction, stream: Stream) -> None:
    """Delete a stream, with all deleted ones that were kept for it alone."""
    wakes.forget(transaction, stream.path)
    for _ in range(_DROPPED):
        if stream.references:
            kept = transaction.change(stream)
            kept.deleted = True
            kept.deadline = None
            return
        transaction.remove(stream)
        if stream.source is None:
            return
        source = transaction.change(transaction.stream_of(stream.source))
        source.references -= 1
        if not source.deleted:
            return
        stream = source
    stream.deadline = transaction.now  # it expires at once, and the rest of a long chain with it


@dataclass(frozen=True, slots=True)
class Fork:
    """Where a new stream branches off."""

    path: str
    position: int | None = None
    """`None` means the tail of the source."""
    units: int = 0
    """How many more, within the append that follows."""


@dataclass(frozen=True, slots=True)
class Created:
    """The outcome of a creation."""

    stream: Stream
    new: bool


@dataclass(frozen=True, slots=True)
class Create(Command[Created]):
    """Create a stream, or confirm that there is the same one already."""

    path: str
    content_type: str | None
    ttl: int | None = None
    expires_at: tuple[str, float] | None = None
    """As the client has put it, and in seconds since 1970."""
    closed: bool = False
    body: bytes = b""
    fork: Fork | None = None
    limit: int | None = None
    """The greatest number of streams."""

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,) if self.fork is None else (self.path, self.fork.path)

    def apply(self, transaction: Transaction) -> Created:
        """Raises `Conflict` if there is another stream, `Invalid`, and `NotFound` if there is no source."""
        existing = at(transaction, self.path)
        if existing is not None:
            return self._confirm(existing)
        if self.path.count("/") >= MAX_SEGMENTS:
            raise Invalid(f"a new stream's path must not have more than {MAX_SEGMENTS} segments")
        source = None if self.fork is None else self._source(transaction, self.fork)
        content_type = self.content_type or (DEFAULT_TYPE if source is None else source.content_type)
        media = messages.media_type(content_type)
        position = 0
        if source is not None and self.fork is not None:
            if media != source.media_type:
                raise Conflict(f"Content-Type must be {source.media_type}, as of the source")
            position = self._position(transaction, source, self.fork)
        lineage = () if source is None else _until(source, position)
        if len(lineage) > _SPANS:
            raise Forbidden(
                f"a fork must not have the data of more than {_SPANS} streams: copy the data to a stream of its own"
            )
        rows, units = messages.parse(media, self.body) if self.body else ([], 0)
        if self.limit is not None and transaction.source.count() + len(transaction.added) >= self.limit:
            raise Forbidden(f"the limit of {self.limit} streams is reached")

        stream = Stream(transaction.source.new_id(), self.path, content_type, media, self._config(content_type))
        stream.ttl, stream.created, stream.closed = self.ttl, transaction.now, self.closed
        if self.expires_at is not None:
            stream.expires_at, stream.deadline = self.expires_at
        if source is not None:
            stream.source, stream.fork, stream.tail = source.id, position, position
            stream.lineage = lineage
            if self.ttl is None and self.expires_at is None:
                stream.ttl, stream.expires_at = source.ttl, source.expires_at
                if source.ttl is None:
                    stream.deadline = source.deadline
            transaction.change(source).references += 1
        touch(transaction, stream)
        transaction.add(stream)
        if units:
            transaction.append(stream, rows, units)
            wakes.appended(transaction, stream)
        return Created(stream.copy(), True)  # later commands of the transaction may change the other

    def _confirm(self, existing: Stream) -> Created:
        if existing.deleted:
            raise Conflict("the stream is deleted, and kept for its forks: its path cannot be used again yet")
        if existing.config != self._config(self.content_type or existing.content_type):
            raise Conflict("the stream exists already, with another configuration")
        if existing.closed != self.closed:
            raise Conflict(f"the stream exists already, and is {'closed' if existing.closed else 'open'}")
        return Created(existing.copy(), False)

    def _config(self, content_type: str) -> str:
        expires = None if self.expires_at is None else self.expires_at[1]
        fork = None
        if self.fork is not None:
            fork = self.fork.path, None if self.fork.position is None else self.fork.position + self.fork.units
        return json.dumps([messages.media_type(content_type), self.ttl, expires, fork])

    def _source(self, transaction: Transaction, fork: Fork) -> Stream:
        source = at(transaction, fork.path)
        if source is None:
            raise NotFound("there is no such stream to fork")
        if source.deleted:
            raise Conflict("the stream to fork is deleted")
        return source

    def _position(self, transaction: Transaction, source: Stream, fork: Fork) -> int:
        position = source.tail if fork.position is None else fork.position
        if position > source.tail:
            raise Invalid("Stream-Fork-Offset must not be beyond the end of the source")
        if fork.units:
            end = transaction.append_end(source, position)
            if end is None or position + fork.units > end:
                raise Invalid("Stream-Fork-Sub-Offset must not be beyond the append at Stream-Fork-Offset")
        return position + fork.units


def _until(source: Stream, position: int) -> tuple[Span, ...]:
    """Return where the data of `source` before `position` is stored."""
    spans = []
    begin = 0
    for span in (*source.lineage, Span(source.id, source.tail)):
        if begin < min(span.end, position):
            spans.append(span if span.end <= position else Span(span.stream, position))
            begin = span.end
    return tuple(spans)


@dataclass(frozen=True, slots=True)
class Identity:
    """An idempotent producer's name and place."""

    name: str
    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.seq}:{self.name}"


@dataclass(frozen=True, slots=True)
class Appended:
    """The outcome of an append."""

    tail: int
    closed: bool
    new: bool = True
    """Whether it has changed anything, which a repetition has not."""
    seq: int | None = None
    """The producer's last one."""


@dataclass(frozen=True, slots=True)
class OfStream(Command[T_co]):
    """A command that is about one stream."""

    path: str

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,)


@dataclass(frozen=True, slots=True)
class Append(OfStream[Appended]):
    """Append to a stream, close it, or both."""

    content_type: str | None
    body: bytes
    seq: str | None = None
    producer: Identity | None = None
    close: bool = False
    limit: int | None = None
    """The greatest number of units of the stream."""

    def apply(self, transaction: Transaction) -> Appended:
        """Raises what the request may be refused for: a closed stream first, then in the order of the code."""
        stream = find(transaction, self.path)
        if stream.closed:
            return self._to_closed(transaction, stream)
        if self.body:
            if self.content_type is None:
                raise Invalid("an append must have a Content-Type")
            if messages.media_type(self.content_type) != stream.media_type:
                raise Conflict(f"Content-Type must be {stream.media_type}, as of the stream")
        elif not self.close:
            raise Invalid("the body must not be empty")
        if self.producer is not None:
            last = self._accepted(transaction, stream, self.producer)
            if last is not None:
                return Appended(stream.tail, False, False, last)
        if self.seq is not None and stream.seq is not None and self.seq.encode() <= stream.seq.encode():
            raise Conflict("Stream-Seq must be greater than in the last append")
        rows: list[tuple[bytes, int]] = []
        units = 0
        if self.body:
            rows, units = messages.parse(stream.media_type, self.body)
            if not units:
                raise Invalid("the JSON array must not be empty")
            if self.limit is not None and stream.tail + units > self.limit:
                raise Full(f"the stream must not have more than {self.limit} bytes or messages")

        stream = transaction.change(stream)
        touch(transaction, stream)
        if units:
            transaction.append(stream, rows, units)
        if self.seq is not None:
            stream.seq = self.seq
        if self.producer is not None:
            producer = Producer(self.producer.epoch, self.producer.seq)
            transaction.producers[stream.id, self.producer.name] = producer
        if self.close:
            stream.closed = True
            stream.closed_by = None if self.producer is None else str(self.producer)
        if units:
            wakes.appended(transaction, stream)
        return Appended(stream.tail, stream.closed, True, None if self.producer is None else self.producer.seq)

    def _to_closed(self, transaction: Transaction, stream: Stream) -> Appended:
        if self.producer is not None:
            if stream.closed_by == str(self.producer):
                return Appended(stream.tail, True, False, self.producer.seq)
            stored = transaction.producer(stream, self.producer.name)
            if stored is not None and self.producer.epoch < stored.epoch:
                raise StaleEpoch(stored.epoch)
        elif self.close and not self.body:
            return Appended(stream.tail, True, False)
        raise StreamClosed(stream.tail)

    def _accepted(self, transaction: Transaction, stream: Stream, producer: Identity) -> int | None:
        """Return the last sequence number if this append is a repetition, else `None`."""
        stored = transaction.producer(stream, producer.name)
        if stored is not None and producer.epoch < stored.epoch:
            raise StaleEpoch(stored.epoch)
        if stored is None or producer.epoch > stored.epoch:
            if producer.seq:
                if stored is None:
                    raise SequenceGap(0, producer.seq)
                raise Invalid("Producer-Seq must be 0 at the beginning of an epoch")
            return None
        if producer.seq <= stored.seq:
            return stored.seq
        if producer.seq > stored.seq + 1:
            raise SequenceGap(stored.seq + 1, producer.seq)
        return None


@dataclass(frozen=True, slots=True)
class Delete(OfStream[None]):
    """Delete a stream."""

    def apply(self, transaction: Transaction) -> None:
        """Raises `NotFound` or `Gone`."""
        drop(transaction, find(transaction, self.path))


@dataclass(frozen=True, slots=True)
class Touch(OfStream[None]):
    """Restart the time-to-live of a stream, because it was read."""

    deadline: float
    """Seconds since 1970."""

    def apply(self, transaction: Transaction) -> None:
        """Does nothing if the stream has gone."""
        # It was read in time, though the deadline that is known here may be over.
        stream = transaction.stream(self.path)
        if stream is None or stream.deleted or stream.ttl is None or stream.deadline is None:
            return
        if stream.deadline < self.deadline:
            transaction.change(stream).deadline = self.deadline


@dataclass(frozen=True, slots=True)
class Expire(OfStream[None]):
    """Delete a stream if its time has come."""

    def apply(self, transaction: Transaction) -> None:
        """Does nothing if it was read meanwhile."""
        at(transaction, self.path)


@dataclass(frozen=True, slots=True)
class Nothing(Command[None]):
    """Change nothing, to show that the database accepts commands."""

    def apply(self, transaction: Transaction) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Secrets(Command[dict[str, str]]):
    """Look at secrets, and keep new ones if there are none."""

    new: dict[str, str]

    def apply(self, transaction: Transaction) -> dict[str, str]:
        """Return the secrets by name."""
        return {name: transaction.secret(name, value) for name, value in self.new.items()}
