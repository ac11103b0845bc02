"""The message log in PostgreSQL, shared by any number of processes, on any number of machines.

The promises, and their reasons:

- *Offsets are gapless, and the same for all.* A batch is one statement, which is one transaction. It begins by adding
  to the `next_offset` of its topics, whose rows stay locked until it has committed. So the offsets of a topic become
  visible in their order, and those of a transaction that fails are given to the next. Topics are locked in the order
  of their names: no two processes wait for each other.
- *Stored is stored.* `append` returns after the commit, and asks for `synchronous_commit`, whatever the database's
  default.
- *Every wait is woken.* The notification is part of the transaction: it is sent if and only if that commits, whether
  or not this process lives to see it. An operation is watched first, and `refresh` asks for the topic's end afterwards.
  Earlier commits are in the answer. A later commit is notified when the operation is watched already; the relay then
  awaits `refresh`, and checks the key. While it has no connection the relay hears nothing: it
  treats every watched key like that when it has subscribed again.
- *What is known here never goes backwards.* Of ends the greater one counts, as answers may overtake each other. Where
  replicas are is known by `refresh` alone, of which there is one at a time.
- *An announced message can be read everywhere*, as a fetch begins with `refresh`.

A connection that is lost in the middle of `append` leaves unknown whether that has committed: `StoreUncertain`. If it
has, the message is there, once, and others may have read it; a second publish has it there twice.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from itertools import chain
from typing import Any, Final

import asyncpg
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from examples.long_poll_server.batches import Batches
from examples.long_poll_server.requests import NAME
from examples.long_poll_server.store import (
    MAX_REPLICAS,
    PAGE_BYTES,
    StoreFailed,
    StoreFull,
    StoreUnavailable,
    StoreUncertain,
    TooManyReplicas,
    as_json,
)
from purgatory import DelayedOperationPurgatory
from purgatory.relay import Relay, RelayError
from purgatory.relay.postgres import PostgresBroker

CHANNEL: Final = "long_poll"
"""Of the notifications."""
BATCH: Final = 100
"""Messages in a transaction, at most: as they are in memory."""
CONNECTIONS: Final = 5
"""Of a process at most, beside the one of its relay."""
CONNECTING: Final = 5.0
"""Seconds to connect in."""
WORKING: Final = 10.0
"""Seconds for a statement, then the database gives it up."""
HANGING: Final = 15.0
"""Seconds until a database that does not say so is given up."""
PATIENCE: Final = 20.0
"""Seconds, the wait for other calls included."""
CLOSING: Final = 1.0
"""Seconds to say goodbye in."""

LOCK: Final = "SELECT pg_advisory_xact_lock(hashtext('long_poll'))"
EXISTS: Final = "SELECT to_regclass('long_poll.replicas') IS NOT NULL"
SCHEMA: Final = """
CREATE SCHEMA IF NOT EXISTS long_poll;
CREATE TABLE long_poll.incarnation (id TEXT NOT NULL);
INSERT INTO long_poll.incarnation VALUES (gen_random_uuid());
CREATE TABLE long_poll.topics (topic TEXT PRIMARY KEY, next_offset BIGINT NOT NULL);
CREATE TABLE long_poll.messages (
    topic TEXT NOT NULL, "offset" BIGINT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (topic, "offset")
);
-- After a crash of the database it is empty: replicas fetch again. Their fetches need not wait for the disk.
CREATE UNLOGGED TABLE long_poll.replicas (
    topic TEXT NOT NULL, replica TEXT NOT NULL, position BIGINT NOT NULL, PRIMARY KEY (topic, replica)
);
"""
APPEND: Final = """
WITH batch AS (
    SELECT topic, value, count(*) OVER (PARTITION BY topic) AS size,
           row_number() OVER (PARTITION BY topic ORDER BY number) AS place
    FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS given (topic, value, number)
), grown AS (
    INSERT INTO long_poll.topics AS known (topic, next_offset)
    SELECT topic, count(*) FROM batch GROUP BY topic ORDER BY topic
    ON CONFLICT (topic) DO UPDATE SET next_offset = known.next_offset + excluded.next_offset
    RETURNING topic, next_offset
), stored AS (
    INSERT INTO long_poll.messages (topic, "offset", value)
    SELECT topic, next_offset - size + place - 1, value FROM batch JOIN grown USING (topic)
), told AS (
    SELECT pg_notify($3, payload) FROM unnest($4::text[]) AS payload
)
SELECT topic, next_offset, (SELECT count(*) FROM told) FROM grown
"""
READ: Final = """
WITH RECURSIVE page AS (
    SELECT "offset", value, 21 + octet_length(value) AS size
    FROM long_poll.messages WHERE topic = $1 AND "offset" = $2
    UNION ALL
    SELECT following."offset", following.value, size + 21 + octet_length(following.value)
    FROM page JOIN long_poll.messages AS following ON topic = $1 AND following."offset" = page."offset" + 1
    WHERE following."offset" < $3 AND size <= $4
)
SELECT "offset", value FROM page
"""
"""A page takes as much work as it has messages. Each is 21 bytes or more in JSON, beside its value."""
REFRESH: Final = """
SELECT topic, next_offset, ARRAY(SELECT position FROM long_poll.replicas WHERE replicas.topic = topics.topic)
FROM long_poll.topics
"""
REFRESH_SOME: Final = f"{REFRESH} WHERE topic = ANY($1::text[])"
INCARNATION: Final = "SELECT id FROM long_poll.incarnation"
ACKNOWLEDGE: Final = """
WITH known AS (
    SELECT replica FROM long_poll.replicas WHERE topic = $1
), moved AS (
    INSERT INTO long_poll.replicas AS before (topic, replica, position)
    SELECT $1, $2, $3 WHERE $2 IN (SELECT replica FROM known) OR (SELECT count(*) FROM known) < $4
    ON CONFLICT (topic, replica) DO UPDATE SET position = excluded.position WHERE before.position < excluded.position
    RETURNING replica
), told AS (
    SELECT pg_notify($5, payload) FROM unnest($6::text[]) AS payload WHERE EXISTS (SELECT FROM moved)
)
SELECT $2 IN (SELECT replica FROM known) OR (SELECT count(*) FROM known) < $4, (SELECT count(*) FROM told)
"""

_log = logging.getLogger("long_poll_server")

_BACK_OFF: Final = wait_random_exponential(multiplier=0.1, max=5.0)

_LOST: Final = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # another statement is under way on a connection that is just being lost
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
)
"""Errors of the way to the database."""


async def prepare(dsn: str) -> None:
    """Make the tables in the database that `dsn` names, if they are not there.

    Raises `ValueError` if `dsn` is none, and `StoreUnavailable` if the database cannot be reached or does not let us.
    """
    try:
        connection = await asyncpg.connect(dsn, timeout=CONNECTING, command_timeout=HANGING)
        try:
            async with connection.transaction():
                await connection.execute(LOCK)
                if not await connection.fetchval(EXISTS):
                    await connection.execute(SCHEMA)
        finally:
            await connection.close(timeout=CONNECTING)
    except TimeoutError:
        raise StoreUnavailable("it does not answer") from None
    except ValueError:
        raise ValueError("no address of a PostgreSQL database") from None  # what asyncpg says may quote the password
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise StoreUnavailable(_say(error)) from error


class PostgresLog:
    """The `Store` that several processes share. The tables are there: see `prepare`.

    It need not be reachable when this starts. A call that needs it raises `StoreUnavailable` while it is away.
    """

    incarnation: str = ""
    """Names this log, for as long as it has these messages. Known after the first `refresh`."""

    def __init__(self, dsn: str, fetches: DelayedOperationPurgatory, produces: DelayedOperationPurgatory) -> None:
        """Keep messages in the database that `dsn` names. The operations in both purgatories watch topics."""
        self._dsn = dsn
        self._fetches = fetches
        self._produces = produces
        self._relay = self._new_relay()
        self._pool: asyncpg.Pool[Any] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._appends = Batches(self._store, BATCH, size=lambda item: len(item[1]))
        self._refreshes = Batches(self._load, 1000)
        self._ends: dict[str, int] = {}
        self._positions: dict[str, list[int]] = {}
        self._behind = True
        """Whether there may be more topics than are known here: notifications may have been missed."""

    @property
    def topics(self) -> int:
        """How many have messages, as far as is known here."""
        return len(self._ends)

    async def start(self) -> None:
        """Begin to listen."""
        self._pool = await asyncpg.create_pool(
            self._dsn,
            min_size=0,
            max_size=CONNECTIONS,
            timeout=CONNECTING,
            command_timeout=HANGING,
            server_settings={"synchronous_commit": "on", "statement_timeout": f"{1000 * WORKING:.0f}"},
            reset=_nothing,  # each statement is a transaction of its own, and leaves nothing behind
        )
        self._listening = asyncio.create_task(self._listen())

    async def close(self) -> None:
        """Store what has been given to `append`, and disconnect."""
        await self._appends.finish()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
        if self._pool is not None:
            try:
                async with asyncio.timeout(CLOSING):
                    await self._pool.close()
            except TimeoutError:
                self._pool.terminate()

    def end(self, topic: str) -> int:
        """The offset that the next message of `topic` will have, as far as is known here. It never goes backwards."""
        return self._ends.get(topic, 0)

    def count(self, topic: str, offset: int) -> int:
        """How many replicas have acknowledged the message at `offset`, as far as is known here."""
        return sum(position > offset for position in self._positions.get(topic, ()))

    async def refresh(self, topics: Iterable[str]) -> None:
        """Get to know what was stored in `topics`, and acknowledged, before this was called."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._refreshes.do(tuple(topics))
        except TimeoutError:
            raise StoreUnavailable("the database takes too long") from None

    async def append(self, topic: str, value: str) -> int:
        """Store `value`, which is JSON. Returns its offset after the commit."""
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._appends.do((topic, value))
        except TimeoutError:
            raise StoreUncertain("the database takes too long") from None

    async def read(self, topic: str, offset: int, end: int, limit: int) -> tuple[str, int]:
        """A page of up to `limit` messages from `offset` to before `end`, as a JSON array, and the offset after it."""
        if offset >= end:
            return "[]", offset
        return as_json(await self._execute(READ, topic, offset, min(end, offset + limit), PAGE_BYTES), offset)

    async def acknowledge(self, topic: str, replica: str, offset: int) -> None:
        """`replica` fetches at `offset`: it has everything below. Raises `TooManyReplicas` if it is one too many.

        Where several new ones come through several connections at the same time, there may be some more than that.
        """
        payloads = self._relay.payloads([topic])
        ((is_room, _),) = await self._execute(ACKNOWLEDGE, topic, replica, offset, MAX_REPLICAS, CHANNEL, payloads)
        if not is_room:
            raise TooManyReplicas
        await self.refresh([topic])

    async def _store(self, batch: list[tuple[str, str]]) -> list[int]:
        sizes = Counter(topic for topic, _ in batch)
        topics, values = zip(*batch, strict=True)
        rows = await self._execute(APPEND, topics, values, CHANNEL, self._relay.payloads(sizes))
        offsets = {}
        for topic, end, _ in rows:
            self._has_end(topic, end)
            offsets[topic] = end - sizes[topic]
            # Its own notification comes back, too. This is sooner.
            self._fetches.check_and_complete_soon(topic)
        stored = []
        for topic in topics:
            stored.append(offsets[topic])
            offsets[topic] += 1
        return stored

    async def _load(self, batch: list[tuple[str, ...]]) -> list[None]:
        if not self.incarnation:
            ((self.incarnation,),) = await self._execute(INCARNATION)
        everything, self._behind = self._behind, False
        try:
            query = (REFRESH,) if everything else (REFRESH_SOME, [*{*chain.from_iterable(batch)}])
            rows = await self._execute(*query)
        except BaseException:
            self._behind |= everything
            raise
        for topic, end, positions in rows:
            self._has_end(topic, end)
            if positions:
                self._positions[topic] = positions
            else:
                self._positions.pop(topic, None)
        return [None] * len(batch)

    def _has_end(self, topic: str, end: int) -> None:
        self._ends[topic] = max(end, self.end(topic))

    def _new_relay(self) -> Relay:
        return Relay(
            self._fetches,
            self._produces,
            broker=PostgresBroker(self._dsn, CHANNEL),
            refresh=self._catch_up,
            invalidate=self._fall_behind,
        )

    async def _listen(self) -> None:
        """Be told of what others store, once the database can be reached; then the relay sees to it that this stays."""
        async for attempt in _retrying(RelayError):
            with attempt:
                self._relay = self._new_relay()
                async with self._relay:
                    await asyncio.Event().wait()

    async def _catch_up(self, topics: Collection[str]) -> None:
        async for attempt in _retrying(StoreUnavailable):
            with attempt:
                # Any client of the database may notify. It has no text with, say, a NUL.
                await self.refresh(filter(NAME.fullmatch, topics))

    def _fall_behind(self) -> None:
        self._behind = True

    async def _execute(self, query: str, *arguments: object) -> list[Any]:
        assert self._pool is not None
        try:
            connection = await self._pool.acquire(timeout=CONNECTING)
        except (*_LOST, asyncpg.PostgresError) as error:
            raise StoreUnavailable("the database cannot be reached") from error
        try:
            return await connection.fetch(query, *arguments)
        except asyncpg.QueryCanceledError as error:
            raise StoreUnavailable("the database takes too long") from error
        except _LOST as error:
            raise StoreUncertain("the connection to the database was lost") from error
        except asyncpg.DiskFullError as error:
            raise StoreFull(_say(error)) from error
        except asyncpg.PostgresError as error:
            raise StoreFailed(_say(error)) from error
        finally:
            with suppress(*_LOST):  # then it has closed it
                await self._pool.release(connection, timeout=CLOSING)


def _say(error: Exception) -> str:
    """Without details and hints, which have lines of their own."""
    return str(error).partition("\n")[0]


def _retrying(error: type[Exception]) -> AsyncRetrying:
    return AsyncRetrying(retry=retry_if_exception_type(error), wait=_BACK_OFF, before_sleep=_tell)


def _tell(state: RetryCallState) -> None:
    assert state.outcome is not None
    _log.warning("%s; the next attempt is in %.1f seconds", state.outcome.exception(), state.upcoming_sleep)


async def _nothing(connection: object) -> None:
    pass
