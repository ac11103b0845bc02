"""Streams in dictionaries: the smallest source of transactions there is."""

from collections.abc import Collection, Mapping

from purgatory.streams.core.globs import Glob
from purgatory.streams.core.state import Link, Linked, Part, Piece, Producer, Row, Stream, Subscription
from purgatory.streams.core.transaction import Transaction


class Memory:
    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.rows: dict[int, list[Row]] = {}
        self.producers: dict[tuple[int, str], Producer] = {}
        self.known: dict[str, Subscription] = {}
        self.all_links: dict[tuple[str, str], Link] = {}
        self.secrets: dict[str, str] = {}
        self.last = 0

    def stream(self, path: str) -> Stream | None:
        return next((each for each in self.streams.values() if each.path == path), None)

    def tail(self, path: str) -> int:
        stream = self.stream(path)
        return 0 if stream is None or stream.deleted else stream.tail

    def stream_of(self, number: int) -> Stream:
        return self.streams[number]

    def producer(self, stream: int, name: str) -> Producer | None:
        return self.producers.get((stream, name))

    def append_end(self, stream: int, position: int) -> int:
        return next(row.append_end or row.end for row in self.rows[stream] if row.begin <= position < row.end)

    def new_id(self) -> int:
        self.last += 1
        return self.last

    def count(self) -> int:
        return len(self.streams)

    def tails(self, paths: Collection[str]) -> Mapping[str, int]:
        return {each.path: each.tail for each in self.streams.values() if each.path in paths and not each.deleted}

    def paths(self, after: int) -> Collection[str]:
        return [each.path for each in self.streams.values() if each.id > after and not each.deleted]

    def secret(self, name: str) -> str | None:
        return self.secrets.get(name)

    def subscription(self, name: str) -> Subscription | None:
        return self.known.get(name)

    def matching(self, path: str) -> Collection[str]:
        return [
            each.id for each in self.known.values() if each.pattern is not None and Glob(each.pattern).matches(path)
        ]

    def subscription_count(self) -> int:
        return len(self.known)

    def links(self, subscription: str) -> Mapping[str, Link]:
        return {path: link for (name, path), link in self.all_links.items() if name == subscription}

    def links_at(self, path: str) -> Mapping[str, Link]:
        return {name: link for (name, linked), link in self.all_links.items() if linked == path}

    def links_to(self, subscription: str, paths: Collection[str]) -> Mapping[str, Link]:
        return {path: link for path, link in self.links(subscription).items() if path in paths}

    def link_count(self, subscription: str) -> int:
        return len(self.links(subscription))

    def linked(self, subscription: str, after: str, limit: int) -> list[Linked]:
        links = sorted(self.links(subscription).items())
        return [Linked(path, link, self.tail(path)) for path, link in links if path > after][:limit]

    def pending(self, subscription: str, limit: int) -> list[Linked]:
        return [each for each in self.linked(subscription, "", len(self.all_links)) if each.is_pending][:limit]

    def woken(self, subscription: str) -> list[Linked]:
        return [each for each in self.linked(subscription, "", len(self.all_links)) if each.is_woken]

    def read(self, pieces: list[Piece], most: int) -> list[Part]:
        return [
            Part(max(row.begin, piece.begin), min(row.end, piece.end), row)
            for piece in pieces
            for row in self.rows.get(piece.stream, ())
            if row.begin < piece.end and piece.begin < row.end
        ]

    def store(self, transaction: Transaction) -> None:
        for number in transaction.removed:
            del self.streams[number]
            self.rows.pop(number, None)
            self.producers = {key: each for key, each in self.producers.items() if key[0] != number}
        self.streams.update(transaction.added)
        self.streams.update(transaction.changed)
        for number, rows in transaction.rows.items():
            self.rows.setdefault(number, []).extend(rows)
        self.producers.update(transaction.producers)
        self.secrets.update(transaction.secrets)
        for name, subscription in transaction.subscriptions.items():
            if subscription is None:
                self.known.pop(name, None)
            else:
                self.known[name] = subscription
        self.all_links = {key: link for key, link in self.all_links.items() if key[0] not in transaction.unlinked}
        for key, link in transaction.links.items():
            if link is None:
                self.all_links.pop(key, None)
            else:
                self.all_links[key] = link
