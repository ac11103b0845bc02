"""The SQL that both databases have in common, and the methods that each must add."""

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from functools import lru_cache
from itertools import takewhile
from typing import Any, Final, NamedTuple

from purgatory.streams.core.globs import Glob, Patterns
from purgatory.streams.core.state import Link, Linked, Part, Piece, Producer, Row, Span, Stream, Subscription
from purgatory.streams.core.subscriptions import FARTHEST
from purgatory.streams.core.transaction import Source, Transaction


class Extent(NamedTuple):
    """The limits of one read."""

    size: int
    """Bytes after which no further row is read."""
    rows: int
    """The most rows."""


class StorageError(Exception):
    """The database has failed. Nothing is stored, unless `may_be_stored`."""

    may_be_stored = False


class StorageFull(StorageError):
    """The disk is full."""


class StorageConflict(StorageError):
    """Another process was first, so the transaction must be repeated."""


class StorageUnavailable(StorageError):
    """The database cannot be reached, or is too busy."""


_STREAM: Final = (
    "id", "path", "content_type", "media_type", "config", "ttl", "expires_at", "deadline", "tail", "closed",
    "closed_by", "seq", "source", "fork", "lineage", "refs", "deleted", "created", "version",
)  # fmt: skip
_SUBSCRIPTION: Final = tuple(field.name for field in fields(Subscription))
_LINEAGE: Final = _STREAM.index("lineage")
SELECT_STREAM: Final = f"SELECT {', '.join(_STREAM)} FROM streams"
_ADD_STREAM: Final = f"INSERT INTO streams ({', '.join(_STREAM)}) VALUES ({', '.join('?' * len(_STREAM))})"
_CHANGE_STREAM: Final = (
    "UPDATE streams SET deadline = ?, tail = ?, closed = ?, closed_by = ?, seq = ?, refs = ?, deleted = ?, version = ?"
    " WHERE id = ?"
)
SELECT_SUBSCRIPTIONS: Final = f"SELECT {', '.join(_SUBSCRIPTION)} FROM subscriptions"
_PUT_SUBSCRIPTION: Final = (
    f"INSERT INTO subscriptions ({', '.join(_SUBSCRIPTION)}) VALUES ({', '.join('?' * len(_SUBSCRIPTION))})"
    f" ON CONFLICT (id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _SUBSCRIPTION[1:])}"
)
_PUT_PRODUCER: Final = (
    "INSERT INTO producers (stream, name, epoch, seq) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (stream, name) DO UPDATE SET epoch = excluded.epoch, seq = excluded.seq"
)
PUT_LINKS: Final = (
    "INSERT INTO links (subscription, path, explicit, glob, acked, woken) {values}"
    " ON CONFLICT (subscription, path) DO UPDATE SET explicit = excluded.explicit, glob = excluded.glob,"
    " acked = excluded.acked, woken = excluded.woken"
)
_LINK: Final = "explicit, glob, acked, woken"
_IN: Final = 500
"""Paths that are looked up at once."""
_DUE: Final = 1000
"""Streams, and subscriptions, that are due and looked at together."""
_ROWS: Final = 256
"""Rows that are fetched at once."""
_DROPPED: Final = 1000
"""Rows of deleted streams that a transaction deletes, at most."""
_DROPPED_BYTES: Final = 4 * 1024 * 1024
"""Bytes after which it deletes no more, which takes 20 ms."""
_DROPPED_STREAMS: Final = 50
"""Streams whose rows it deletes, at most."""
# Those of a piece, of which the first one may begin before. There are none if that one is deleted already.
FROM_DATA: Final = (
    "FROM data WHERE stream = ? AND first < ? AND first >="
    " (SELECT max(first) FROM data WHERE stream = ? AND first <= ?) ORDER BY first LIMIT ?"
)
# Rows that begin before so many bytes: their sizes are known without them.
_SELECT_ROWS: Final = (
    "SELECT first, last, data FROM (SELECT first, last, data, sum(length(data)) OVER (ORDER BY first) - length(data)"
    f" AS before {FROM_DATA}) AS rows WHERE before < ? ORDER BY first"
)


class Database(Source, ABC):
    """A connection to the database: the `Source` of transactions, and their store."""

    def __init__(self) -> None:
        self._compiled = Patterns()

    # What each database has of its own.

    @abstractmethod
    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Execute a statement and return its rows. Placeholders are `?`. Raises `StorageError`."""

    @abstractmethod
    def execute_many(self, sql: str, parameters: Iterable[Sequence[Any]]) -> None:
        """Execute a statement many times. Raises `StorageError`."""

    def number(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Execute a statement that returns one number. Raises `StorageError`."""
        ((number,),) = self.execute(sql, parameters)
        return int(number)

    def column(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Execute a statement whose rows have one column, and return that. Raises `StorageError`."""
        return [value for (value,) in self.execute(sql, parameters)]

    @abstractmethod
    def transaction(self, paths: Collection[str], alone: bool = False) -> AbstractContextManager[None]:
        """Begin, and commit at the end, or roll back if an exception is raised.

        Locks the streams at `paths`, with `alone` all of them. Raises `StorageError`.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def is_lost(self) -> bool:
        """Return whether the connection was lost since its last use."""
        return False

    locked: str = ""
    """The end of a `SELECT` that locks its rows."""
    locked_alone: str = ""
    """The same, without those that another process has locked."""

    links_path: str = "links.path"
    """The path of a link, to be compared with the path of a stream and ordered as it is."""

    def exchange(self, process: str, snapshot: str, fresh: float | None) -> list[str]:
        """Put the snapshot of `process` in place of its last one, in a database that several processes share.

        Returns those of the other processes that are at most `fresh` seconds old; none if that is `None`. Raises
        `StorageError`.
        """
        raise NotImplementedError("SQLite is for one process")

    def put_links(self, links: Sequence[tuple[str, str, int, int, int, int | None]]) -> None:
        """Store links, in the order of the table's columns."""
        self.execute_many(PUT_LINKS.format(values="VALUES (?, ?, ?, ?, ?, ?)"), links)

    # The source of a transaction.

    def stream(self, path: str) -> Stream | None:
        for row in self.execute(f"{SELECT_STREAM} WHERE path = ?{self.locked}", [path]):
            return stream_of_row(row)
        return None

    def tail(self, path: str) -> int:
        stream = self.stream(path)
        return 0 if stream is None or stream.deleted else stream.tail

    def stream_of(self, number: int) -> Stream:
        (row,) = self.execute(f"{SELECT_STREAM} WHERE id = ?{self.locked}", [number])
        return stream_of_row(row)

    def producer(self, stream: int, name: str) -> Producer | None:
        for row in self.execute("SELECT epoch, seq FROM producers WHERE stream = ? AND name = ?", [stream, name]):
            return Producer(*row)
        return None

    def append_end(self, stream: int, position: int) -> int:
        sql = "SELECT COALESCE(append_end, last) FROM data WHERE stream = ? AND first <= ? ORDER BY first DESC LIMIT 1"
        return self.number(sql, [stream, position])

    def count(self) -> int:
        return self.number("SELECT count(*) FROM streams")

    def tails(self, paths: Collection[str]) -> Mapping[str, int]:
        return dict(self._select_in("SELECT path, tail FROM streams WHERE deleted = 0", [], paths))

    def paths(self, after: int) -> Collection[str]:
        return self.column("SELECT path FROM streams WHERE id > ? AND deleted = 0", [after])

    def _select_in(self, sql: str, parameters: Sequence[Any], paths: Collection[str]) -> Iterator[Any]:
        """Yield the rows of these paths."""
        ordered = sorted(paths)
        for begin in range(0, len(ordered), _IN):
            some = ordered[begin : begin + _IN]
            yield from self.execute(f"{sql} AND path IN ({', '.join('?' * len(some))})", [*parameters, *some])

    def probe(self) -> int:
        """Read a little of each table that requests read. Return how many streams there are. Raises `StorageError`."""
        for (path,) in self.execute("SELECT path FROM streams LIMIT 1"):
            Database.stream(self, path)
        self.execute("SELECT stream, first, last, append_end, length(data) FROM data LIMIT 1")
        self.execute("SELECT stream, name, epoch, seq FROM producers LIMIT 1")
        self.execute(f"{SELECT_SUBSCRIPTIONS} LIMIT 1")
        self.execute(f"SELECT subscription, path, {_LINK} FROM links LIMIT 1")
        return Database.count(self)

    def secret(self, name: str) -> str | None:
        for (value,) in self.execute(f"SELECT value FROM secrets WHERE name = ?{self.locked}", [name]):
            return str(value)
        return None

    def subscription(self, name: str) -> Subscription | None:
        for row in self.execute(f"{SELECT_SUBSCRIPTIONS} WHERE id = ?{self.locked}", [name]):
            return Subscription(*row)
        return None

    def matching(self, path: str) -> Collection[str]:
        self._compiled.replace(self.patterns())
        return self._compiled.matching(path)

    def patterns(self) -> Collection[tuple[str, str | None]]:
        """Return the ids and patterns of all subscriptions."""
        return self.execute("SELECT id, pattern FROM subscriptions")

    def subscription_count(self) -> int:
        return len(self.patterns())

    def links_at(self, path: str) -> Mapping[str, Link]:
        rows = self.execute(f"SELECT subscription, {_LINK} FROM links WHERE path = ?", [path])
        return {name: link_of_row(link) for name, *link in rows}

    def links_to(self, subscription: str, paths: Collection[str]) -> Mapping[str, Link]:
        rows = self._select_in(f"SELECT path, {_LINK} FROM links WHERE subscription = ?", [subscription], paths)
        return {path: link_of_row(link) for path, *link in rows}

    def link_count(self, subscription: str) -> int:
        return self.number("SELECT count(*) FROM links WHERE subscription = ?", [subscription])

    def linked(self, subscription: str, after: str, limit: int) -> list[Linked]:
        return self._linked(f"{self.links_path} > ? ORDER BY {self.links_path} LIMIT ?", subscription, after, limit)

    def pending(self, subscription: str, limit: int) -> list[Linked]:
        return self._linked(f"COALESCE(tail, 0) > acked ORDER BY {self.links_path} LIMIT ?", subscription, limit)

    def woken(self, subscription: str) -> list[Linked]:
        return self._linked("woken > acked", subscription)

    def _linked(self, condition: str, *parameters: Any) -> list[Linked]:
        sql = (
            f"SELECT links.path, {_LINK}, COALESCE(tail, 0) FROM links LEFT JOIN streams"
            f" ON streams.path = {self.links_path} AND deleted = 0 WHERE subscription = ? AND {condition}"
        )
        return [Linked(path, link_of_row(link), int(tail)) for path, *link, tail in self.execute(sql, parameters)]

    # What is not part of a transaction.

    def read(self, pieces: Sequence[Piece], extent: Extent) -> list[Part]:
        """Return the data of `pieces`, up to the extent `extent`."""
        parts: list[Part] = []
        size = 0
        for piece in pieces:
            _, begin, stop = piece
            while begin < stop:
                before = begin
                for row in self.rows(piece._replace(begin=begin), extent.size - size):
                    end = min(row.end, stop)
                    parts.append(Part(begin, end, row))
                    size += len(row.data)
                    begin = end
                    if size >= extent.size or len(parts) >= extent.rows:
                        return parts
                if begin == before:
                    return parts  # deleted meanwhile
        return parts

    def rows(self, piece: Piece, limit: int) -> Iterable[Row]:
        """Return some of the rows of a piece. The first one may begin before.

        Those beyond `limit` bytes need not come, or are not read until they are taken.
        """
        rows = self.execute(_SELECT_ROWS, [*of_piece(piece), limit])
        return [Row(first, last, bytes(data)) for first, last, data in rows]

    def streams(self, paths: Collection[str]) -> dict[str, Stream]:
        """Return the streams at these paths."""
        found = ((path, Database.stream(self, path)) for path in paths)
        return {path: stream for path, stream in found if stream is not None}

    def due(self, now: float) -> tuple[list[str], list[str], float | None]:
        """Return the paths of streams and the ids of subscriptions that are due, and the next time after that.

        Among them are subscriptions whose time is farther than it can be, because a clock was wrong.
        """
        streams = self.column(f"SELECT path FROM streams WHERE deadline <= ? LIMIT {_DUE}", [now])
        subscriptions = self.column(
            "SELECT id FROM subscriptions WHERE lease_until <= ? OR lease_until > ? + lease"
            f" OR attempt_at <= ? OR attempt_at > ? LIMIT {_DUE}",
            [now, now + 1.0, now, now + FARTHEST],
        )
        if len(streams) == _DUE or len(subscriptions) == _DUE:
            return streams, subscriptions, now
        times = [
            *self.column("SELECT min(deadline) FROM streams WHERE deadline > ?", [now]),
            *self.column("SELECT min(lease_until) FROM subscriptions WHERE lease_until > ?", [now]),
            *self.column("SELECT min(attempt_at) FROM subscriptions WHERE attempt_at > ?", [now]),
        ]
        return streams, subscriptions, min((time for time in times if time is not None), default=None)

    def listed(self, prefix: str, after: str, limit: int) -> list[Stream]:
        """Return streams whose paths begin with `prefix`, the first ones that follow `after`."""
        sql = f"{SELECT_STREAM} WHERE deleted = 0 AND path > ? AND path >= ? ORDER BY path LIMIT ?"
        streams = map(stream_of_row, self.execute(sql, [after, prefix, limit]))
        return list(takewhile(lambda stream: stream.path.startswith(prefix), streams))

    def last_id(self) -> int:
        """Return the greatest id of a stream, or 0 without streams."""
        return self.number("SELECT COALESCE(max(id), 0) FROM streams")

    def matched(self, glob: Glob, after: str, limit: int) -> tuple[list[str], str | None]:
        """Return the matches among the first `limit` streams behind the path `after`, and the path to go on from.

        That is `None` if all matches have been found.
        """
        # All of them are at `prefix`, or below it. "0" follows "/".
        sql = "SELECT path FROM streams WHERE deleted = 0 AND path > ? AND path >= ?"
        parameters: list[Any] = [after, glob.prefix]
        if glob.prefix:
            sql += " AND path < ?"
            parameters.append(f"{glob.prefix}0")
        paths = self.column(f"{sql} ORDER BY path LIMIT ?", [*parameters, limit])
        return [path for path in paths if glob.matches(path)], paths[-1] if len(paths) == limit else None

    def store(self, transaction: Transaction) -> None:
        """Store the changes of a transaction, within one of the database."""
        removed = [(number,) for number in transaction.removed]
        self._execute_each("DELETE FROM streams WHERE id = ?", removed)
        self._execute_each("INSERT INTO dropped (stream) VALUES (?)", removed)
        self._execute_each(_ADD_STREAM, [_values(stream) for stream in transaction.added.values()])
        self._execute_each(_CHANGE_STREAM, [_changes(stream) for stream in transaction.changed.values()])
        sql = "INSERT INTO data (stream, first, last, data, append_end) VALUES (?, ?, ?, ?, ?)"
        self._execute_each(sql, [(stream, *row) for stream, rows in transaction.rows.items() for row in rows])
        producers = [(*key, each.epoch, each.seq) for key, each in transaction.producers.items()]
        self._execute_each(_PUT_PRODUCER, producers)
        self._execute_each("INSERT INTO secrets (name, value) VALUES (?, ?)", list(transaction.secrets.items()))
        if transaction.subscriptions or transaction.links:
            self._store_subscriptions(transaction)

    def _store_subscriptions(self, transaction: Transaction) -> None:
        self._execute_each("DELETE FROM links WHERE subscription = ?", [(name,) for name in transaction.unlinked])
        deleted = [(name,) for name, subscription in transaction.subscriptions.items() if subscription is None]
        self._execute_each("DELETE FROM subscriptions WHERE id = ?", deleted)
        subscriptions = [
            [getattr(subscription, column) for column in _SUBSCRIPTION]
            for subscription in transaction.subscriptions.values()
            if subscription is not None
        ]
        self._execute_each(_PUT_SUBSCRIPTION, subscriptions)
        dropped = [key for key, link in transaction.links.items() if link is None]
        self._execute_each("DELETE FROM links WHERE subscription = ? AND path = ?", dropped)
        links = [
            (*key, int(link.explicit), int(link.glob), link.acked, link.woken)
            for key, link in transaction.links.items()
            if link is not None
        ]
        if links:
            self.put_links(links)

    def _execute_each(self, sql: str, parameters: Sequence[Sequence[Any]]) -> None:
        if parameters:
            self.execute_many(sql, parameters)

    def drop_rows(self) -> bool:
        """Delete some rows of deleted streams, within a transaction. Return whether there are more."""
        sql = f"SELECT stream FROM dropped ORDER BY stream LIMIT {_DROPPED_STREAMS}{self.locked_alone}"
        streams = self.column(sql)
        left = _DROPPED
        size = 0
        for count, stream in enumerate(streams):
            sql = f"SELECT first, length(data) FROM data WHERE stream = ? ORDER BY first LIMIT {left}"
            end = None
            for first, length in self.execute(sql, [stream]):
                end = first
                left -= 1
                size += length
                if size >= _DROPPED_BYTES:
                    left = 0
                    break
            if end is not None:
                self.execute("DELETE FROM data WHERE stream = ? AND first <= ?", [stream, end])
            names = self.execute(f"SELECT name FROM producers WHERE stream = ? ORDER BY name LIMIT {left}", [stream])
            if names:
                left -= len(names)
                self.execute("DELETE FROM producers WHERE stream = ? AND name <= ?", [stream, *names[-1]])
            if left <= 0:  # this one may have more
                streams = streams[:count]
                break
        self._execute_each("DELETE FROM dropped WHERE stream = ?", [(stream,) for stream in streams])
        return left <= 0 or len(streams) == _DROPPED_STREAMS

    def shrink(self) -> bool:
        """Give some of the room that deleted rows have left back to the disk. Return whether there is more.

        Called without a transaction. A database that has means of its own does nothing.
        """
        return False

    def stored(self, transaction: Transaction) -> None:
        """Called when a transaction of the database has stored these changes."""


def of_piece(piece: Piece) -> list[int]:
    """Return the parameters of `FROM_DATA`."""
    return [piece.stream, piece.end, piece.stream, piece.begin, _ROWS]


def stream_of_row(row: Sequence[Any]) -> Stream:
    """Return the stream of a row of `SELECT_STREAM`."""
    stream = Stream(*row)
    stream.closed, stream.deleted = bool(stream.closed), bool(stream.deleted)
    stream.lineage = _lineage(row[_LINEAGE]) if stream.source is not None else ()
    return stream


@lru_cache(128)
def _lineage(text: str) -> tuple[Span, ...]:
    """Return the lineage of a stream. The forks of a stream share it."""
    return tuple(Span(*span) for span in json.loads(text))


def link_of_row(row: Sequence[Any]) -> Link:
    """Return the link of a row's columns."""
    explicit, glob, acked, woken = row
    return Link(bool(explicit), bool(glob), acked, woken)


def _values(stream: Stream) -> tuple[Any, ...]:
    return (
        stream.id, stream.path, stream.content_type, stream.media_type, stream.config, stream.ttl, stream.expires_at,
        stream.deadline, stream.tail, int(stream.closed), stream.closed_by, stream.seq, stream.source, stream.fork,
        json.dumps(stream.lineage), stream.references, int(stream.deleted), stream.created, stream.version,
    )  # fmt: skip


def _changes(stream: Stream) -> tuple[Any, ...]:
    return (
        stream.deadline, stream.tail, int(stream.closed), stream.closed_by, stream.seq, stream.references,
        int(stream.deleted), stream.version, stream.id,
    )  # fmt: skip
