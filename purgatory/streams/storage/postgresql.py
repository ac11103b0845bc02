"""PostgreSQL, shared by any number of processes.

A transaction locks the streams that it changes, in the order of their paths, before it looks at them. So the positions
of a stream become visible in their order. Its notification is part of it: other processes are told if and only if it
commits.
"""

import math
import select
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

import psycopg
from psycopg.errors import (
    DeadlockDetected,
    DiskFull,
    QueryCanceled,
    ReadOnlySqlTransaction,
    SerializationFailure,
    UniqueViolation,
)

from purgatory.relay.payload import encode
from purgatory.streams.core.state import Link, Stream, Subscription
from purgatory.streams.core.transaction import Transaction
from purgatory.streams.storage import schema
from purgatory.streams.storage.database import (
    PUT_LINKS,
    SELECT_STREAM,
    SELECT_SUBSCRIPTIONS,
    Database,
    StorageConflict,
    StorageError,
    StorageFull,
    StorageUnavailable,
    link_of_row,
    stream_of_row,
)

CHANNEL: Final = "durable_streams"
"""The channel of the notifications."""
_SCHEMA: Final = "durable_streams"
_LOCK: Final = 6_049_437
"""The number of an advisory lock: shared by transactions, and taken alone by a new subscription."""
_CONNECTING: Final = 5
_WORKING: Final = 10_000
"""The timeout of a statement, in milliseconds."""
_COUNTED: Final = 1.0
"""Seconds for which the number of streams is remembered: other processes may exceed it by those they create then."""
_LINKS_COUNTED: Final = 10.0
"""The same for the links of a subscription."""
_LINKS: Final = "SELECT * FROM unnest(?::text[], ?::text[], ?::integer[], ?::integer[], ?::bigint[], ?::bigint[])"
# They outlive no crash, and need not. Their times are the database's own, because the clocks of machines differ.
_SNAPSHOTS: Final = (
    "CREATE UNLOGGED TABLE IF NOT EXISTS snapshots"
    " (process TEXT PRIMARY KEY, at TIMESTAMPTZ NOT NULL, snapshot TEXT NOT NULL)"
)
_PUT_SNAPSHOT: Final = (
    "INSERT INTO snapshots (process, at, snapshot) VALUES (?, clock_timestamp(), ?)"
    " ON CONFLICT (process) DO UPDATE SET at = excluded.at, snapshot = excluded.snapshot"
)
_SNAPSHOT_KEPT: Final = 60.0
"""Seconds after which the row of a process that has ended is deleted."""
_OPTIONS: Final = (
    f"-c search_path={_SCHEMA} -c statement_timeout={_WORKING} -c lock_timeout={_WORKING}"
    f" -c idle_in_transaction_session_timeout={_WORKING} -c synchronous_commit=on"
)

_DIALECT: Final = schema.Dialect(
    blob="BYTEA",
    columns=(
        "SELECT relname, attname FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid"
        f" WHERE relnamespace = '{_SCHEMA}'::regnamespace AND attnum > 0 AND NOT attisdropped"
    ),
    own=("CREATE SEQUENCE stream_ids", _SNAPSHOTS),
    own_columns=frozenset(
        {("stream_ids", "last_value"), ("snapshots", "process"), ("snapshots", "at"), ("snapshots", "snapshot")}
    ),
    collation=' COLLATE "C"',
)

_UNAVAILABLE: Final = (psycopg.InterfaceError, QueryCanceled, ReadOnlySqlTransaction)
"""A database that has become a replica is read-only: the next connection finds the other one."""


def prepare(dsn: str) -> None:
    """Make the tables, or migrate them. Raises `StorageError`."""
    with closing(PostgresDatabase(dsn)) as database:
        # Until the end of the session: a migration has several transactions.
        database.execute("SELECT pg_advisory_lock(?)", [_LOCK])
        database.execute(f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA}")
        schema.prepare(database, _DIALECT)


class PostgresDatabase(Database):
    """A connection to PostgreSQL."""

    locked = " FOR UPDATE"
    locked_alone = " FOR UPDATE SKIP LOCKED"
    links_path = 'links.path COLLATE "C"'

    def __init__(self, dsn: str, *, writes: bool = False) -> None:
        """Connect, and lock what is read if the connection `writes`. Raises `StorageError`."""
        super().__init__()
        with errors():
            self._connection = psycopg.connect(
                dsn,
                connect_timeout=_CONNECTING,
                options=_OPTIONS,
                autocommit=True,
                # These detect a server that has silently vanished.
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=2,
                tcp_user_timeout=20_000,
            )
        if not writes:
            self.locked = ""
        self._count = 0
        self._counted_at = -math.inf
        self._link_counts: dict[str, tuple[int, float]] = {}
        """Counts, and when they were looked up."""
        self._forget()

    def _forget(self) -> None:
        """Remember counts in a transaction, because they hold until its end."""
        self._found: dict[str, Stream | None] = {}
        self._patterns: Collection[tuple[str, str | None]] | None = None
        self._locked_subscriptions: dict[str, Subscription] = {}
        self._links: dict[str, dict[str, Link]] = {}

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        with errors(self._connection):
            cursor = self._connection.execute(sql.replace("?", "%s").encode(), parameters)
            return cursor.fetchall() if cursor.description is not None else []

    def execute_many(self, sql: str, parameters: Iterable[Sequence[Any]]) -> None:
        with errors(self._connection), self._connection.cursor() as cursor:
            cursor.executemany(sql.replace("?", "%s").encode(), parameters)

    @contextmanager
    def transaction(self, paths: Collection[str], alone: bool = False) -> Iterator[None]:
        self._forget()
        is_committing = False
        self.execute("BEGIN")
        try:
            self.execute(f"SELECT pg_advisory_xact_lock{'' if alone else '_shared'}(?)", [_LOCK])
            if paths:
                self._found = dict.fromkeys(paths)
                for row in self.execute(f"{SELECT_STREAM} WHERE path = ANY(?) ORDER BY path FOR UPDATE", [list(paths)]):
                    stream = stream_of_row(row)
                    self._found[stream.path] = stream
                self._lock_subscriptions(paths)
            yield
            is_committing = True
            self.execute("COMMIT")
        except BaseException as error:
            if isinstance(error, StorageUnavailable):
                error.may_be_stored = is_committing
            with suppress(StorageError):
                self.execute("ROLLBACK")
            raise
        finally:
            self._forget()

    def stream(self, path: str) -> Stream | None:
        return self._found[path] if path in self._found else super().stream(path)

    def count(self) -> int:
        # To count a million streams for each new one would take longer than to create it.
        now = time.monotonic()
        if self._counted_at + _COUNTED < now:
            self._count, self._counted_at = super().count(), now
        return self._count

    def patterns(self) -> Collection[tuple[str, str | None]]:
        if self._patterns is None:
            self._patterns = super().patterns()
        return self._patterns

    def _lock_subscriptions(self, paths: Collection[str]) -> None:
        """Lock those of the streams in the order of their ids: transactions do not wait for each other."""
        self._links = {path: {} for path in paths}
        if not self.patterns():
            return
        linked = self.column("SELECT DISTINCT subscription FROM links WHERE path = ANY(?)", [list(paths)])
        names = set(linked).union(*map(self.matching, paths))
        if not names:
            return
        sql = f"{SELECT_SUBSCRIPTIONS} WHERE id = ANY(?) ORDER BY id FOR UPDATE"
        for row in self.execute(sql, [sorted(names)]):
            self._locked_subscriptions[row[0]] = Subscription(*row)
        # Their links no longer change.
        sql = "SELECT path, subscription, explicit, glob, acked, woken FROM links WHERE path = ANY(?)"
        for path, name, *link in self.execute(sql, [list(paths)]):
            self._links[path][name] = link_of_row(link)

    def subscription(self, name: str) -> Subscription | None:
        return self._locked_subscriptions.get(name) or super().subscription(name)

    def links_at(self, path: str) -> Mapping[str, Link]:
        return self._links[path] if path in self._links else super().links_at(path)

    def link_count(self, subscription: str) -> int:
        now = time.monotonic()
        count, counted_at = self._link_counts.get(subscription, (0, -math.inf))
        if counted_at + _LINKS_COUNTED < now:
            count = super().link_count(subscription)
            self._link_counts[subscription] = count, now
        return count

    def put_links(self, links: Sequence[tuple[str, str, int, int, int, int | None]]) -> None:
        self.execute(PUT_LINKS.format(values=_LINKS), [list(column) for column in zip(*links, strict=True)])

    def tail(self, path: str) -> int:
        # Not locked: the subscription is, and an append to the stream waits for that before it looks at it.
        for tail, deleted in self.execute("SELECT tail, deleted FROM streams WHERE path = ?", [path]):
            return 0 if deleted else int(tail)
        return 0

    def new_id(self) -> int:
        return self.number("SELECT nextval('stream_ids')")

    def store(self, transaction: Transaction) -> None:
        super().store(transaction)
        self._count += len(transaction.added) - len(transaction.removed)
        for name in transaction.unlinked:
            self._link_counts.pop(name, None)
        for name, added in transaction.added_links.items():
            if name in self._link_counts:
                count, counted_at = self._link_counts[name]
                self._link_counts[name] = count + added, counted_at
        paths = [
            stream.path
            for streams in (transaction.added, transaction.changed, transaction.removed)
            for stream in streams.values()
        ]
        if paths:
            payloads = list(encode(dict.fromkeys(paths)))
            self.execute("SELECT pg_notify(?, payload) FROM unnest(?::text[]) AS payload", [CHANNEL, payloads])

    def exchange(self, process: str, snapshot: str, fresh: float | None) -> list[str]:
        self.execute(_PUT_SNAPSHOT, [process, snapshot])
        if fresh is None:
            return []
        self.execute("DELETE FROM snapshots WHERE at < clock_timestamp() - make_interval(secs => ?)", [_SNAPSHOT_KEPT])
        sql = "SELECT snapshot FROM snapshots WHERE process <> ? AND at > clock_timestamp() - make_interval(secs => ?)"
        return self.column(sql, [process, fresh])

    def close(self) -> None:
        self._connection.close()

    def is_lost(self) -> bool:
        # A server says nothing to a client that asks nothing, but that it closes the connection.
        idle = select.poll()
        idle.register(self._connection.fileno(), select.POLLIN)
        return bool(idle.poll(0))


@contextmanager
def errors(connection: "psycopg.Connection[Any] | None" = None) -> Iterator[None]:
    """Raise `StorageError` for psycopg's errors, those of `connection` for one."""
    try:
        yield
    except psycopg.Error as error:
        kind: type[StorageError] = StorageError
        # Not only operational errors end a connection. One that is lost while a result comes has no class of its own,
        # and a session that was idle in its transaction for too long is an internal error.
        if (connection is not None and connection.closed) or isinstance(error, _UNAVAILABLE):
            kind = StorageUnavailable
        elif isinstance(error, (DeadlockDetected, SerializationFailure, UniqueViolation)):
            kind = StorageConflict
        elif isinstance(error, DiskFull):
            kind = StorageFull
        elif isinstance(error, psycopg.OperationalError):
            kind = StorageUnavailable
        text = str(error).partition("\n")[0]  # no message of another layer: some have the password
        raise kind(f"the database failed: {text}") from error
