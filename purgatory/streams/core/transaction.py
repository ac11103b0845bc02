"""A transaction: what is known of streams, and what is changed, before it is stored all at once."""

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Protocol

from purgatory.streams.core.globs import Glob
from purgatory.streams.core.state import Link, Linked, Producer, Row, Stream, Subscription

_LINK: Final = 400
"""Bytes of appends that take as long to store as the deletion of a link."""


class Source(Protocol):
    """The stored state that a transaction begins with. Records are not to be changed."""

    def stream(self, path: str) -> Stream | None:
        """Return the stream at `path`, even a deleted one that is kept for its forks."""

    def tail(self, path: str) -> int:
        """Return the tail of the stream at `path`, read without locking it, or 0 if it does not exist."""

    def stream_of(self, number: int) -> Stream:
        """Return the stream with this id, which exists."""

    def producer(self, stream: int, name: str) -> Producer | None:
        """Return the producer of a stream."""

    def append_end(self, stream: int, position: int) -> int:
        """Return the end of the append that contains the unit at `position`, which exists."""

    def new_id(self) -> int:
        """Return an id that no stream has had."""

    def count(self) -> int:
        """Return how many streams there are, including deleted ones that are kept for their forks."""

    def tails(self, paths: Collection[str]) -> Mapping[str, int]:
        """Return the tails of the streams at these paths, except for deleted ones."""

    def paths(self, after: int) -> Collection[str]:
        """Return the paths of the streams with ids greater than `after`, except for deleted ones."""

    def secret(self, name: str) -> str | None:
        """Return the secret with this name, if it exists."""

    def subscription(self, name: str) -> Subscription | None:
        """Return the subscription with this id."""

    def matching(self, path: str) -> Collection[str]:
        """Return the ids of all subscriptions whose pattern matches the path."""

    def subscription_count(self) -> int:
        """Return how many subscriptions there are."""

    def links_at(self, path: str) -> Mapping[str, Link]:
        """Return the links to the stream at `path`, by the ids of their subscriptions."""

    def links_to(self, subscription: str, paths: Collection[str]) -> Mapping[str, Link]:
        """Return the subscription's links to these paths."""

    def link_count(self, subscription: str) -> int:
        """Return how many streams the subscription has."""

    def linked(self, subscription: str, after: str, limit: int) -> list[Linked]:
        """Return the first `limit` streams of a subscription behind the path `after`, in the order of their paths."""

    def pending(self, subscription: str, limit: int) -> list[Linked]:
        """Return the first `limit` pending ones of them."""

    def woken(self, subscription: str) -> list[Linked]:
        """Return all of them that the wake contains."""


class Transaction:
    """Some commands' changes. They see each other's, and are stored together."""

    def __init__(self, source: Source, now: float) -> None:
        """Begin with the state of `source` at `now`, in seconds since 1970."""
        self.source = source
        self.now = now
        self.added: dict[int, Stream] = {}
        self.changed: dict[int, Stream] = {}
        self.removed: dict[int, Stream] = {}
        self.size = 0
        """Bytes of the appends, and of deletions of links as if they were some."""
        self.rows: dict[int, list[Row]] = {}
        """The rows that are appended to each stream."""
        self.producers: dict[tuple[int, str], Producer] = {}
        self.subscriptions: dict[str, Subscription | None] = {}
        """The changed ones; `None` is a deleted one."""
        self.unlinked: set[str] = set()
        """The ids of subscriptions that lose all stored links, before the changed ones are stored."""
        self.links: dict[tuple[str, str], Link | None] = {}
        """The changed ones, by subscription and path."""
        self.full: set[str] = set()
        """The ids of subscriptions whose pattern matches a stream that they have no room for."""
        self.added_links: Counter[str] = Counter()
        """How many more links there are, by subscription; fewer if that is negative."""
        self._links_at: dict[str, Mapping[str, Link]] = {}
        """The stored links to the paths that were looked at."""
        self._globs: dict[str, Glob | None] = {}
        """The patterns of new subscriptions."""
        self._at: defaultdict[str, set[str]] = defaultdict(set)
        """By path: the subscriptions whose link to it is changed."""
        self._touched: defaultdict[str, set[str]] = defaultdict(set)
        """By subscription: the paths at which a link or a stream is changed."""
        self.grown: OrderedDict[str, None] = OrderedDict()
        """Paths of streams whose subscriptions are still to be woken, each once: a thousand may share a wake stream."""
        self.secrets: dict[str, str] = {}
        """New ones."""
        self.paths: dict[str, Stream | None] = {}
        """The streams at the paths that were looked at, as they are by now."""

    @property
    def is_changed(self) -> bool:
        """Whether there are changes to store."""
        return bool(self.added or self.changed or self.removed or self.subscriptions or self.links or self.secrets)

    def secret(self, name: str, new: str) -> str:
        """Return the secret with this name, which is `new` if there was none."""
        stored = self.secrets.get(name) or self.source.secret(name)
        if stored is None:
            stored = self.secrets[name] = new
        return stored

    # Streams.

    def stream(self, path: str) -> Stream | None:
        """Return the present stream at `path`. It may have expired."""
        try:
            return self.paths[path]
        except KeyError:
            found = self.paths[path] = self.source.stream(path)
            return found

    def tail(self, path: str) -> int:
        """Return the tail of the stream at `path`, or 0 if it does not exist."""
        if path not in self.paths:
            return self.source.tail(path)
        stream = self.paths[path]
        return 0 if stream is None or stream.deleted else stream.tail

    def stream_of(self, number: int) -> Stream:
        """Return the stream with this id."""
        found = self.changed.get(number) or self.added.get(number)
        return self.source.stream_of(number) if found is None else found

    def add(self, stream: Stream) -> None:
        """Add a new stream."""
        self.added[stream.id] = stream
        self.paths[stream.path] = stream

    def change(self, stream: Stream) -> Stream:
        """Return a record of the stream that may be changed."""
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

    def append(self, stream: Stream, rows: list[tuple[bytes, int]], units: int) -> None:
        """Add one append to a stream that may be changed: the rows and units of `messages.parse`."""
        begin = stream.tail
        stream.tail += units
        stored = self.rows.setdefault(stream.id, [])
        for data, count in rows:
            self.size += len(data)
            stored.append(Row(begin, begin + count, data, stream.tail))
            begin += count

    def append_end(self, stream: Stream, position: int) -> int | None:
        """Return the end of the append that contains the unit at `position` of a stream."""
        for piece in stream.pieces(position):
            for row in self.rows.get(piece.stream, ()):
                if row.begin <= position < row.end:
                    return min(row.append_end or row.end, piece.end)
            return min(self.source.append_end(piece.stream, position), piece.end)
        return None

    def producer(self, stream: Stream, name: str) -> Producer | None:
        """Return a producer of the stream."""
        key = stream.id, name
        if key in self.producers:
            return self.producers[key]
        return None if stream.id in self.added else self.source.producer(*key)

    def tails(self, paths: Iterable[str]) -> dict[str, int]:
        """Return the tails of the streams at these paths, except for deleted ones."""
        paths = list(paths)
        tails = dict(self.source.tails([path for path in paths if path not in self.paths]))
        for path in paths:
            stream = self.paths.get(path)
            if stream is not None and not stream.deleted:
                tails[path] = stream.tail
        return tails

    def paths_after(self, number: int) -> set[str]:
        """Return the paths of the streams with ids greater than `number`, except for deleted ones, and some others."""
        paths = set(self.source.paths(number))
        for path, stream in self.paths.items():
            if stream is None or stream.deleted:
                paths.discard(path)
            else:
                paths.add(path)
        return paths

    # Subscriptions. Their links are looked up one by one, or in pages: there may be many.

    def subscription(self, name: str) -> Subscription | None:
        """Return the subscription with this id."""
        if name not in self.subscriptions:
            return self.source.subscription(name)
        return self.subscriptions[name]

    def add_subscription(self, subscription: Subscription, glob: Glob | None) -> None:
        """Add a new subscription, without links."""
        self.subscriptions[subscription.id] = subscription
        self._globs[subscription.id] = glob

    def subscription_count(self) -> int:
        """Return how many subscriptions there are, including those that this transaction deletes."""
        return self.source.subscription_count() + len(self._globs)

    def remove_subscription(self, name: str) -> None:
        """Drop a subscription with its links."""
        self.size += _LINK * self.link_count(name)
        self.subscriptions[name] = None
        self.unlinked.add(name)
        for path in self._touched.pop(name, ()):
            self.links.pop((name, path), None)
            self._at[path].discard(name)
        self.added_links.pop(name, None)
        self._globs.pop(name, None)
        self.full.discard(name)

    def change_subscription(self, subscription: Subscription) -> Subscription:
        """Return a record of the subscription that may be changed."""
        mine = self.subscriptions.get(subscription.id)
        if mine is None:
            mine = self.subscriptions[subscription.id] = subscription.copy()
        return mine

    def subscribers(self, path: str) -> list[tuple[Subscription, Link | None]]:
        """Return the subscriptions of a stream that is changed, in the order of their ids.

        Where there is no link yet, the pattern matches the path.
        """
        links = {name: self.link(name, path) for name in (*self._stored_links(path), *self._at.get(path, ()))}
        names = {name for name, link in links.items() if link is not None}
        names.update(name for name in self.source.matching(path) if name not in self._globs)
        names.update(name for name, glob in self._globs.items() if glob is not None and glob.matches(path))
        found = []
        for name in sorted(names):
            subscription = self.subscription(name)
            if subscription is not None:
                self._touched[name].add(path)
                found.append((subscription, links.get(name)))
        return found

    def link(self, subscription: str, path: str) -> Link | None:
        """Return the link of a subscription to the stream at `path`."""
        if (subscription, path) in self.links:
            return self.links[subscription, path]
        return None if self._is_unlinked(subscription) else self._stored_links(path).get(subscription)

    def _stored_links(self, path: str) -> Mapping[str, Link]:
        try:
            return self._links_at[path]
        except KeyError:
            found = self._links_at[path] = self.source.links_at(path)
            return found

    def links_to(self, subscription: str, paths: Iterable[str]) -> dict[str, Link]:
        """Return the subscription's links to these paths."""
        found: dict[str, Link | None] = {}
        paths = list(paths)
        if not self._is_unlinked(subscription):
            found.update(self.source.links_to(subscription, paths))
        for path in paths:
            if (subscription, path) in self.links:
                found[path] = self.links[subscription, path]
        return {path: link for path, link in found.items() if link is not None}

    def change_link(self, subscription: str, path: str, before: Link | None, after: Link | None) -> None:
        """Replace the link `before` with `after`. `None` means no link."""
        self.links[subscription, path] = after
        self._at[path].add(subscription)
        self._touched[subscription].add(path)
        self.added_links[subscription] += (after is not None) - (before is not None)

    def link_count(self, subscription: str) -> int:
        """Return how many streams the subscription has."""
        stored = 0 if self._is_unlinked(subscription) else self.source.link_count(subscription)
        return stored + self.added_links[subscription]

    def linked(self, subscription: str, after: str, limit: int) -> list[Linked]:
        """Return the first `limit` streams of a subscription behind the path `after`, in the order of their paths."""
        room = limit + len(self._touched.get(subscription, ()))
        stored = [] if self._is_unlinked(subscription) else self.source.linked(subscription, after, room)
        links = self._touched_links(subscription)
        first = sorted(path for path in links if path > after)[:limit]
        return self._merged(subscription, stored, {path: links[path] for path in first})[:limit]

    def pending(self, subscription: str, limit: int) -> list[Linked]:
        """Return the first `limit` pending ones of them."""
        room = limit + len(self._touched.get(subscription, ()))
        stored = [] if self._is_unlinked(subscription) else self.source.pending(subscription, room)
        links = self._touched_links(subscription)
        return [each for each in self._merged(subscription, stored, links) if each.is_pending][:limit]

    def woken(self, subscription: str) -> list[Linked]:
        """Return all of them that the wake contains."""
        stored = [] if self._is_unlinked(subscription) else self.source.woken(subscription)
        links = self._touched_links(subscription)
        return [each for each in self._merged(subscription, stored, links) if each.is_woken]

    def _touched_links(self, subscription: str) -> dict[str, Link]:
        return self.links_to(subscription, self._touched.get(subscription, ()))

    def _merged(self, subscription: str, stored: Iterable[Linked], links: Mapping[str, Link]) -> list[Linked]:
        """Return the stored links, except at changed paths, and these links, in the order of their paths."""
        touched = self._touched.get(subscription, set())
        found = [linked for linked in stored if linked.path not in touched]
        tails = self.tails(links)
        found += [Linked(path, link, tails.get(path, 0)) for path, link in links.items()]
        return sorted(found, key=lambda linked: linked.path)

    def _is_unlinked(self, subscription: str) -> bool:
        """Return whether all of its stored links are outdated."""
        return subscription in self.unlinked or subscription in self._globs
