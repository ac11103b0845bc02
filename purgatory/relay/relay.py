"""The relay: notifies other processes of changed keys, and checks here the keys of their notifications."""

import asyncio
import logging
from asyncio import _get_running_loop
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from purgatory import DelayedOperationPurgatory, PurgatoryError
from purgatory.lowlevel import check_callback, check_count, report, seconds
from purgatory.relay.broker import Broker
from purgatory.relay.payload import check_key, decode, encode

if TYPE_CHECKING:
    from purgatory.relay.inbox import Inbox
    from purgatory.relay.link import Link

__all__ = ["Relay", "RelayError", "RelayStatistics"]

_log = logging.getLogger("purgatory")

_CLOSING: Final = 5.0
"""The seconds for which a close waits for the broker to take the last keys."""


class RelayError(PurgatoryError):
    """The broker cannot be reached at the start, or the relay is not open."""


@dataclass(frozen=True, slots=True)
class RelayStatistics:
    """The counts of a relay since it was opened, and the numbers of pending keys."""

    connected: bool
    """Whether it is connected to the broker."""
    notified: int
    """Keys given to `notify`, repetitions included."""
    published: int
    """Messages that the broker has taken."""
    received: int
    """Messages from other processes."""
    malformed: int
    """Malformed messages, which were ignored."""
    reconnects: int
    """Replacements of a lost connection."""
    failures: int
    """Failures of `refresh` or `invalidate`."""
    unpublished: int
    """Keys that wait to be published; *everything* counts as one."""
    unchecked: int
    """Keys from other processes that wait to be checked here, or to be tried again; *everything* counts as one."""


class Relay:
    """Carries notifications of changed keys between the purgatories of several processes.

        async with Relay(purgatory, broker=PostgresBroker(dsn)) as relay:
            ...                        # change the state
            relay.notify("topic-1")    # checks the key here and in every other process

    Its promises are in the docstring of the package. It belongs to one event loop and its thread, and serves once.
    """

    def __init__(
        self,
        *purgatories: DelayedOperationPurgatory,
        broker: Broker | None = None,
        refresh: Callable[[Collection[str]], Awaitable[None]] | None = None,
        invalidate: Callable[[], object] | None = None,
        heartbeat: float = 15.0,
        max_keys: int = 10_000,
    ) -> None:
        """Check keys in `purgatories`, and in those of all relays on the same channel of `broker`.

        Without a broker there are no others, and no extra is needed.

        `refresh` is awaited with keys that have changed in another process, watched here or not, before they are
        checked: there a process brings up to date its copy of a state that is kept in a database, say. It gets up to a
        thousand keys at a time. A key that is notified meanwhile comes again. An exception goes to the loop's exception
        handler; the batch is bisected until the failing keys are isolated, and these are tried again later. They delay
        no other keys. There is one call at a time, without a time limit.

        When it is not known which keys have changed, because the connection was lost or there were too many, `refresh`
        gets all watched keys; a key that several purgatories watch, once for each. Before that, `invalidate()` is
        called: the copies of other keys may be outdated too, and must be dropped. A read that began before that call
        must not be remembered either.

        The broker is pinged each `heartbeat` seconds, and the connection is given up if an answer takes as long. Up to
        `max_keys` keys wait to be published, and as many to be checked here; more collapse to "everything".

        Checks, `refresh` and `invalidate` run in an empty context (`contextvars.Context()`). Raises `TypeError` or
        `ValueError` for values of the wrong type or out of range.
        """
        for purgatory in purgatories:
            if not isinstance(purgatory, DelayedOperationPurgatory):
                within = " (has one: pass its .purgatory)" if hasattr(purgatory, "purgatory") else ""
                raise TypeError(f"a relay needs instances of DelayedOperationPurgatory, not {purgatory!r}{within}")
        if broker is not None and not callable(getattr(broker, "connect", None)):
            raise TypeError(f"broker must have a method connect(), unlike {broker!r}")
        if refresh is not None and not callable(refresh):
            raise TypeError(f"refresh must be callable, not {refresh!r}")
        if invalidate is not None:
            check_callback("invalidate", invalidate)
        heartbeat = seconds("heartbeat", heartbeat, "positive")
        check_count("max_keys", max_keys, 1)
        self._purgatories = purgatories
        self._broker = broker
        self._refresh = refresh
        self._invalidate = invalidate
        self._heartbeat = heartbeat
        self._max_keys = max_keys
        self._state = "not open yet"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sender = ""
        self._link: Link | None = None
        self._inbox: Inbox | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._notified = 0
        self._received = 0
        self._malformed = 0

    def __repr__(self) -> str:
        names = ", ".join(repr(purgatory.name) for purgatory in self._purgatories)
        connected = " connected" if self.connected else ""
        return f"<{type(self).__qualname__} {names} {self._state}{connected}>"

    async def __aenter__(self) -> "Relay":
        """Connect and subscribe. Raises `RelayError` if the broker cannot be reached, or the relay has been used."""
        if self._state != "not open yet":
            raise RelayError(f"{self!r} has been used: a relay serves once")
        self._state = "opening"
        self._loop = asyncio.get_running_loop()
        if self._broker is not None:
            await self._connect(self._broker)
        self._state = "open"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait some seconds for the broker to take the keys that are left, and disconnect."""
        try:
            if self._link is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CLOSING):
                        while not self._link.idle:
                            await self._link.flush()
        finally:
            await self._close()
            if self._link is not None and not self._link.idle:
                _log.warning("%r has closed, and its broker has not taken all keys", self)

    @property
    def connected(self) -> bool:
        """Whether there is a connection to the broker: as far as known, `notify` reaches the other processes."""
        return self._link is not None and self._link.connected

    def statistics(self) -> RelayStatistics:
        """The counts so far, and the numbers of pending keys."""
        link = self._link
        inbox = self._inbox
        return RelayStatistics(
            connected=self.connected,
            notified=self._notified,
            published=0 if link is None else link.published,
            received=self._received,
            malformed=self._malformed,
            reconnects=0 if link is None else max(0, link.connections - 1),
            failures=0 if inbox is None else inbox.failures,
            unpublished=0 if link is None else link.pending,
            unchecked=0 if inbox is None else inbox.pending,
        )

    def notify(self, *keys: str) -> None:
        """The state has changed, and operations that watch `keys` may be complete now.

        They are checked here on the next iteration of the loop, and in all other processes as soon as the broker has
        delivered them. Returns at once. Raises, with nothing done: `TypeError` for a key that is no `str`, `ValueError`
        for a key that is too long (7,935 bytes as JSON), `RelayError` if the relay is not open, or on another thread.
        """
        self._check_open()
        for key in keys:
            check_key(key)
        for key in keys:
            self._check(key)
        self._notified += len(keys)
        if keys and self._link is not None:
            self._link.add(keys)

    def payloads(self, keys: Iterable[str]) -> list[str]:
        """The payloads to publish on the broker's channel instead of `notify(*keys)`.

        In a transaction of PostgreSQL, `SELECT pg_notify(channel, payload)` for each of them is sent if and only if it
        commits. They reach this process too, which checks the keys when they come back. Raises as `notify`.
        """
        if isinstance(keys, str):
            raise TypeError(f"keys must be an iterable of keys, not the str {keys!r}")
        keys = list(keys)
        for key in keys:
            check_key(key)
        return list(encode(dict.fromkeys(keys)))

    async def flush(self) -> None:
        """Return when the broker has taken all keys that `notify` got so far.

        Waits while the broker is away. Raises `RelayError` if the relay is not open, or is closed meanwhile.
        """
        self._check_open()
        if self._link is not None and not await self._link.flush():
            raise RelayError(f"{self!r} was closed before the broker had taken everything")

    async def _connect(self, broker: Broker) -> None:
        # Imported here, as they need the extra.
        from purgatory.relay.inbox import Inbox
        from purgatory.relay.link import Link

        inbox = Inbox(self._purgatories, self._max_keys, self._check, self._refresh, self._invalidate)
        # Not earlier: a process that was forked meanwhile is another one.
        self._sender = uuid4().hex
        link = Link(
            broker, self._sender, self._heartbeat, self._max_keys, self._receive, subscribed=lambda: inbox.add(None)
        )
        self._inbox = inbox
        self._link = link
        # In empty contexts: checks, `refresh` and `invalidate` never run in that of the request which opens the relay.
        self._tasks = [
            asyncio.create_task(link.run(), context=Context()),
            asyncio.create_task(inbox.run(), context=Context()),
        ]
        try:
            await link.first
        except Exception as exception:
            await self._close()
            raise RelayError(f"the broker cannot be reached: {type(exception).__name__}: {exception}") from exception
        except BaseException:
            await self._close()
            raise

    async def _close(self) -> None:
        self._state = "closed"
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            if self._link is not None:
                await self._link.aclose()

    def _check_open(self) -> None:
        if self._state != "open":
            raise RelayError(f"{self!r} is not open: use it inside `async with`")
        if _get_running_loop() is not self._loop:
            raise RelayError(f"{self!r} is not for other threads: use loop.call_soon_threadsafe(relay.notify, key)")

    def _check(self, key: str) -> None:
        for purgatory in self._purgatories:
            try:
                purgatory.check_and_complete_soon(key)
            except Exception as exception:  # from another key's __eq__
                report(self._loop, "a watch key cannot be looked up", exception)

    def _receive(self, payload: str | bytes) -> None:
        assert self._inbox is not None
        try:
            sender, keys = decode(payload)
        except ValueError as exception:
            self._malformed += 1
            message = "the relay ignores a malformed message"
            report(self._loop, message, exception, payload=payload[:100])
            return
        if sender != self._sender:
            self._received += 1
            self._inbox.add(keys)
