"""Streams in dictionaries: the smallest source of transactions there is."""

from collections.abc import Collection, Mapping

from purgatory.streams.core.globs import matches
from purgatory.streams.core.state import Link, Part, Piece, Producer, Row, Stream, Subscription
from purgatory.streams.core.transaction import Transaction


class Memory:
    """A source, and the store of transactions."""

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.rows: dict[int, list[Row]] = {}
        self.producers: dict[tuple[int, str], Producer] = {}
        self.known: dict[str, Subscription] = {}
        self.linked: dict[tuple[str, str], Link] = {}
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

    def paths(self) -> Collection[str]:
        return [each.path for each in self.streams.values() if not each.deleted]

    def secret(self, name: str) -> str | None:
        return self.secrets.get(name)

    def subscription(self, name: str) -> Subscription | None:
        return self.known.get(name)

    def subscribers(self, path: str) -> Collection[str]:
        return [
            each.id
            for each in self.known.values()
            if (each.id, path) in self.linked or (each.pattern is not None and matches(each.pattern, path))
        ]

    def subscription_count(self) -> int:
        return len(self.known)

    def links(self, subscription: str) -> Mapping[str, Link]:
        return {path: link for (name, path), link in self.linked.items() if name == subscription}

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
        for key, link in transaction.links.items():
            if link is None:
                self.linked.pop(key, None)
            else:
                self.linked[key] = link
