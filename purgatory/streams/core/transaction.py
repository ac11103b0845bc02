"""A transaction: what is known of streams, and what is changed, before it is stored all at once."""

from collections import deque
from collections.abc import Collection, Mapping
from typing import Protocol

from purgatory.streams.core.globs import matches
from purgatory.streams.core.state import Link, Producer, Row, Stream, Subscription

__all__ = ["Source", "Transaction"]


class Source(Protocol):
    """The stored state that a transaction begins with. Records are not to be changed."""

    def stream(self, path: str) -> Stream | None:
        """The stream at `path`, a deleted one too that is kept for its forks."""

    def tail(self, path: str) -> int:
        """The tail of the stream at `path`, which is not changed then; 0 if there is none."""

    def stream_of(self, number: int) -> Stream:
        """The stream with this id, which exists."""

    def producer(self, stream: int, name: str) -> Producer | None:
        """The producer of a stream."""

    def append_end(self, stream: int, position: int) -> int:
        """Where the append ends that has the unit at `position`, which there is."""

    def new_id(self) -> int:
        """An id that no stream has had."""

    def count(self) -> int:
        """How many streams there are, deleted ones too that are kept for their forks."""

    def paths(self) -> Collection[str]:
        """The paths of all streams that are not deleted."""

    def secret(self, name: str) -> str | None:
        """A secret, if there is one with this name."""

    def subscription(self, name: str) -> Subscription | None:
        """The subscription with this id."""

    def subscribers(self, path: str) -> Collection[str]:
        """The ids of all subscriptions that have a stream at `path`, or whose pattern it matches."""

    def subscription_count(self) -> int:
        """How many there are."""

    def links(self, subscription: str) -> Mapping[str, Link]:
        """The streams of a subscription, by path."""


class Transaction:
    """Some commands' changes. They see each other's, and are stored together."""

    def __init__(self, source: Source, now: float) -> None:
        """Begin with the state of `source` at `now`, in seconds since 1970."""
        self.source = source
        self.now = now
        self.added: dict[int, Stream] = {}
        self.changed: dict[int, Stream] = {}
        self.removed: dict[int, Stream] = {}
        self.rows: dict[int, list[Row]] = {}
        """The rows that are appended to each stream."""
        self.producers: dict[tuple[int, str], Producer] = {}
        self.subscriptions: dict[str, Subscription | None] = {}
        """The changed ones; `None` is a deleted one."""
        self.links: dict[tuple[str, str], Link | None] = {}
        """The changed ones, by subscription and path."""
        self.grown: deque[str] = deque()
        """Paths of streams whose subscriptions are still to be woken."""
        self.secrets: dict[str, str] = {}
        """New ones."""
        self.paths: dict[str, Stream | None] = {}
        """The streams at the paths that were looked at, as they are by now."""

    @property
    def is_changed(self) -> bool:
        """Whether there is anything to store."""
        return bool(self.added or self.changed or self.removed or self.subscriptions or self.links or self.secrets)

    def secret(self, name: str, new: str) -> str:
        """The secret with this name, which is `new` if there was none."""
        known = self.secrets.get(name) or self.source.secret(name)
        if known is None:
            known = self.secrets[name] = new
        return known

    # Streams.

    def stream(self, path: str) -> Stream | None:
        """The stream at `path`, as it is by now. It may have expired."""
        try:
            return self.paths[path]
        except KeyError:
            found = self.paths[path] = self.source.stream(path)
            return found

    def tail(self, path: str) -> int:
        """The tail of the stream at `path`; 0 if there is none."""
        if path not in self.paths:
            return self.source.tail(path)
        stream = self.paths[path]
        return 0 if stream is None or stream.deleted else stream.tail

    def stream_of(self, number: int) -> Stream:
        """The stream with this id."""
        found = self.changed.get(number) or self.added.get(number)
        return self.source.stream_of(number) if found is None else found

    def add(self, stream: Stream) -> None:
        """A new stream."""
        self.added[stream.id] = stream
        self.paths[stream.path] = stream

    def change(self, stream: Stream) -> Stream:
        """A record of the stream that may be changed."""
        if stream.id in self.added:
            return stream
        try:
            return self.changed[stream.id]
        except KeyError:
            mine = self.changed[stream.id] = self.paths[stream.path] = stream.copy()
            mine.version += 1
            return mine

    def remove(self, stream: Stream) -> None:
        """Drop a stream with all that belongs to it."""
        if self.added.pop(stream.id, None) is None:
            self.changed.pop(stream.id, None)
            self.removed[stream.id] = stream
        self.rows.pop(stream.id, None)
        for key in [key for key in self.producers if key[0] == stream.id]:
            del self.producers[key]
        self.paths[stream.path] = None

    def append(self, stream: Stream, rows: list[tuple[bytes, int]]) -> None:
        """Add one append to a stream that may be changed: rows of `messages.parse`, with their units."""
        append_end = None if len(rows) == 1 else stream.tail + sum(units for _, units in rows)
        stored = self.rows.setdefault(stream.id, [])
        for data, units in rows:
            end = stream.tail + units
            stored.append(Row(stream.tail, end, data, append_end))
            stream.tail = end

    def append_end(self, stream: Stream, position: int) -> int | None:
        """Where the append ends that has the unit at `position` of a stream."""
        for piece in stream.pieces(position):
            for row in self.rows.get(piece.stream, ()):
                if row.begin <= position < row.end:
                    return min(row.append_end or row.end, piece.end)
            return min(self.source.append_end(piece.stream, position), piece.end)
        return None

    def producer(self, stream: Stream, name: str) -> Producer | None:
        """A producer of the stream."""
        key = stream.id, name
        if key in self.producers:
            return self.producers[key]
        return None if stream.id in self.added else self.source.producer(*key)

    def all_paths(self) -> set[str]:
        """The paths of all streams that are not deleted."""
        paths = set(self.source.paths())
        for path, stream in self.paths.items():
            if stream is None or stream.deleted:
                paths.discard(path)
            else:
                paths.add(path)
        return paths

    # Subscriptions.

    def subscription(self, name: str) -> Subscription | None:
        """The subscription with this id."""
        if name not in self.subscriptions:
            return self.source.subscription(name)
        return self.subscriptions[name]

    def subscribers(self, path: str) -> list[Subscription]:
        """The subscriptions that have a stream at `path`, or whose pattern it matches, in the order of their ids."""
        names = set(self.source.subscribers(path))
        if self.subscriptions:
            names.update(name for (name, linked), link in self.links.items() if linked == path and link is not None)
            for name, each in self.subscriptions.items():
                if each is not None and each.pattern is not None and matches(each.pattern, path):
                    names.add(name)
        found = [self.subscription(name) for name in sorted(names)]
        return [each for each in found if each is not None]

    def change_subscription(self, subscription: Subscription) -> Subscription:
        """A record of the subscription that may be changed."""
        mine = self.subscriptions.get(subscription.id)
        if mine is None:
            mine = self.subscriptions[subscription.id] = subscription.copy()
        return mine

    def links_of(self, subscription: str) -> dict[str, Link]:
        """The streams of a subscription, by path."""
        links = dict(self.source.links(subscription))
        for (owner, path), link in self.links.items():
            if owner == subscription:
                if link is None:
                    links.pop(path, None)
                else:
                    links[path] = link
        return links
