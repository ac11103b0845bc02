"""The records of a stream, as they are stored."""

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, NamedTuple

from purgatory.streams.core.offsets import BEFORE_ALL, encode


class Span(NamedTuple):
    """Part of a stream's data that is stored with another stream: up to this position."""

    stream: int
    end: int


class Row(NamedTuple):
    """The data of one append, or a part of it, at its position."""

    begin: int
    end: int
    data: bytes
    append_end: int | None = None
    """Where the append ends that this is of. It is not read from the database with the data."""


class Piece(NamedTuple):
    """Rows to read: those of a stored stream between two positions."""

    stream: int
    begin: int
    end: int


class Part(NamedTuple):
    """Units of a row, from one position to another."""

    begin: int
    end: int
    row: Row


@dataclass(slots=True)
class Producer:
    """The state of an idempotent producer of a stream."""

    epoch: int
    seq: int
    """The last one that was accepted in this epoch."""


@dataclass(slots=True)
class Stream:
    """A stream. A record that was committed is never changed: a transaction changes a copy."""

    id: int
    """Unique: a later stream at the same path has another id."""
    path: str
    """Relative to the root of all streams."""
    content_type: str
    media_type: str
    config: str
    """The configuration that was asked for, to compare another request with."""
    ttl: int | None = None
    """Seconds without a read or a write after which the stream expires."""
    expires_at: str | None = None
    """The time at which it expires, as the client has put it."""
    deadline: float | None = None
    """Seconds since 1970: when the stream expires, as things are.

    A deleted stream that nothing needs any more has one if it is still to be dropped.
    """
    tail: int = 0
    closed: bool = False
    closed_by: str | None = None
    """Name, epoch and sequence number of the producer that has closed it."""
    seq: str | None = None
    """The last Stream-Seq. Its scope is the stream."""
    source: int | None = None
    """The stream that this is a fork of."""
    fork: int = 0
    """The position up to which its data is the source's."""
    lineage: tuple[Span, ...] = ()
    """Where the data before `fork` is stored."""
    references: int = 0
    """The number of forks."""
    deleted: bool = False
    """Kept for its forks alone."""
    created: float = 0.0
    """Seconds since 1970."""
    version: int = 0
    """Greater with each change."""

    def copy(self) -> "Stream":
        """Another record, to be changed."""
        return Stream(*_of_stream(self))  # a quarter of the time of dataclasses.replace

    def pieces(self, begin: int) -> list[Piece]:
        """Return where the data from `begin` on is stored."""
        pieces = []
        for stream, end in (*self.lineage, Span(self.id, self.tail)):
            if begin < end:
                pieces.append(Piece(stream, begin, end))
                begin = end
        return pieces

    @property
    def text_size(self) -> int:
        """Characters of what clients have chosen of it."""
        given = self.path, self.content_type, self.config, self.seq or "", self.closed_by or ""
        return sum(map(len, given))

    @property
    def next_offset(self) -> str:
        """The offset of the tail."""
        return encode(self.tail)


class Link(NamedTuple):
    """A stream of a subscription."""

    explicit: bool
    """Named by the subscription."""
    glob: bool
    """Matched by its pattern."""
    acked: int
    """The position up to which it is processed; -1 is before everything."""
    woken: int | None = None
    """The tail in the wake that is under way."""


@dataclass(frozen=True, slots=True)
class Linked:
    """A stream of a subscription, as its worker sees it."""

    path: str
    link: Link
    tail: int

    @property
    def is_pending(self) -> bool:
        """Whether there is something to process."""
        return self.tail > self.link.acked

    @property
    def is_woken(self) -> bool:
        """Whether the wake that is under way has something of it."""
        return self.link.woken is not None and self.link.woken > self.link.acked

    def short(self) -> dict[str, Any]:
        """As the subscription itself shows it."""
        return {
            "path": self.path,
            "link_type": "explicit" if self.link.explicit else "glob",
            "acked_offset": BEFORE_ALL if self.link.acked < 0 else encode(self.link.acked),
        }

    def whole(self) -> dict[str, Any]:
        """As a worker gets it."""
        return {**self.short(), "tail_offset": encode(self.tail), "has_pending": self.is_pending}


@dataclass(slots=True)
class Subscription:
    """A subscription. A record that was committed is never changed."""

    id: str
    config: str
    """The configuration, to compare another request with."""
    type: str
    """`webhook` or `pull-wake`."""
    pattern: str | None
    url: str | None
    """The URL of the webhook."""
    wake_stream: str | None
    lease: float
    """Duration of a lease, in seconds."""
    description: str | None
    created: float
    """Seconds since 1970, as all times here."""
    generation: int = 0
    wake: str | None = None
    """The id of the wake that is under way."""
    holder: str | None = None
    """The worker that has claimed it."""
    lease_until: float | None = None
    attempts: int = 0
    """Deliveries of the wake that have failed."""
    attempt_at: float | None = None
    """When to deliver the wake, if it must be delivered."""
    incarnation: int = 0
    """Tells it from an earlier subscription with the same id."""

    def copy(self) -> "Subscription":
        """Another record, to be changed."""
        return Subscription(*_of_subscription(self))

    @property
    def due(self) -> float | None:
        """When something must be done for it."""
        times = [time for time in (self.lease_until, self.attempt_at) if time is not None]
        return min(times, default=None)


_of_stream = attrgetter(*(field.name for field in fields(Stream)))
_of_subscription = attrgetter(*(field.name for field in fields(Subscription)))
