"""The relay: notifies other processes of changed keys, and checks the keys of their notifications here."""

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

_log = logging.getLogger("purgatory")

_CLOSING: Final = 5.0
"""Seconds for which a close waits for the broker to take the last keys."""


class RelayError(PurgatoryError):
    """The broker cannot be reached at the start, or the relay is not open.

    For example:

        with suppress(RelayError):
            await relay.flush()
    """


@dataclass(frozen=True, slots=True)
class RelayStatistics:
    """The counts of a relay since it was opened, and the numbers of pending keys.

    For example:

        if not relay.statistics().connected:
            log.warning("other processes learn of changes later")
    """

    connected: bool
    """Whether it is connected to the broker."""
    notified: int
    """Keys passed to `notify`, including repetitions."""
    published: int
    """Messages that the broker has taken."""
    received: int
    """Messages from other processes."""
    malformed: int
    """Malformed messages, which are ignored."""
    reconnects: int
    """Lost connections that were replaced."""
    failures: int
    """Failures of `refresh` or `invalidate`."""
    unpublished: int
    """Keys that wait to be published. *Everything* counts as one."""
    unchecked: int
    """Keys from other processes that wait to be checked here or tried again. *Everything* counts as one."""


class Relay:
    """Carries notifications of changed keys between the purgatories of several processes.

        async with Relay(purgatory, broker=PostgresBroker(dsn)) as relay:
            ...                        # change the state
            relay.notify("topic-1")    # checks the key here and in every other process

    Its promises are in the docstring of `purgatory.relay`. A relay belongs to one event loop and its thread, and can be
    opened once.
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
        """Make a relay, which connects when it is opened.

        After a lost connection, or if there were too many keys, it is not known which keys have changed. Then
        `invalidate` is called first, and `refresh` gets all watched keys, a key of several purgatories once for each.
        Both run in an empty context (`contextvars.Context()`), as checks do.

        Args:
            purgatories: The purgatories in which keys are checked.
            broker: The broker that connects this relay with all relays on the same channel. Without one, there are no
                other relays, and no extra is needed.
            refresh: Awaited with up to a thousand keys that have changed in another process, watched here or not,
                before they are checked. Update the process's copy of their state there. There is one call at a time,
                without a timeout, and a key that is notified meanwhile comes again. An exception goes to the event
                loop's exception handler. Then the batch is bisected until the failing keys are isolated, and these are
                tried again later without delaying other keys.
            invalidate: Called when any key may have changed. Drop the copies of all keys there, and don't keep the
                result of a read that began before.
            heartbeat: Seconds between two pings of the broker. The connection is given up if an answer takes as long.
            max_keys: The most keys that wait to be published, and that wait to be checked here. More collapse to
                "everything".

        Raises:
            ValueError: A value is out of range.
            TypeError: A value is of the wrong type.
        """
        for purgatory in purgatories:
            if not isinstance(purgatory, DelayedOperationPurgatory):
                instead = ": pass its .purgatory" if hasattr(purgatory, "purgatory") else ""
                raise TypeError(f"each purgatory must be a DelayedOperationPurgatory, not {purgatory!r}{instead}")
        if broker is not None and not callable(getattr(broker, "connect", None)):
            raise TypeError(f"broker must be an object with connect(), not {broker!r}")
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
        """Connect and subscribe. Raise `RelayError` if the broker cannot be reached, or the relay was opened before."""
        if self._state != "not open yet":
            raise RelayError(f"{self!r} was opened before, and a relay serves once: make a new one")
        self._state = "opening"
        self._loop = asyncio.get_running_loop()
        if self._broker is not None:
            await self._connect(self._broker)
        self._state = "open"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait some seconds for the broker to take the remaining keys, and disconnect."""
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
        """Whether there is a connection to the broker, so that `notify` reaches the other processes."""
        return self._link is not None and self._link.connected

    def statistics(self) -> RelayStatistics:
        """Return the counts so far, and the numbers of pending keys."""
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
        """Check keys in all processes. Call it after a change of their state, and it returns at once.

        They are checked here on the next iteration of the loop, and in other processes as soon as the broker has
        delivered them.

        Raises:
            ValueError: A key takes more than 7,935 bytes as JSON. No key is checked then.
            TypeError: A key is not a `str`.
            RelayError: The relay is not open, or belongs to another thread.
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
        """Return the payloads to publish on the broker's channel instead of a call of `notify`.

        In a PostgreSQL transaction, `SELECT pg_notify(channel, payload)` for each of them is sent if and only if the
        transaction commits. This process checks the keys when the payloads come back. Raises as `notify`.
        """
        if isinstance(keys, str):
            raise TypeError(f"keys must be an iterable of keys, not the str {keys!r}: pass [{keys!r}]")
        keys = list(keys)
        for key in keys:
            check_key(key)
        return list(encode(dict.fromkeys(keys)))

    async def flush(self) -> None:
        """Wait until the broker has taken all keys that `notify` got so far, even while the broker is away.

        Raises:
            RelayError: The relay is not open, or is closed meanwhile.
        """
        self._check_open()
        if self._link is not None and not await self._link.flush():
            raise RelayError(f"{self!r} was closed before the broker had taken everything")

    async def _connect(self, broker: Broker) -> None:
        # Imported here, because they need the extra.
        from purgatory.relay.inbox import Inbox
        from purgatory.relay.link import Link

        inbox = Inbox(self._purgatories, self._max_keys, self._check, self._refresh, self._invalidate)
        # Not earlier, because a process that was forked meanwhile is another one.
        self._sender = uuid4().hex
        link = Link(
            broker, self._sender, self._heartbeat, self._max_keys, self._receive, subscribed=lambda: inbox.add(None)
        )
        self._inbox = inbox
        self._link = link
        # Checks, `refresh` and `invalidate` must never run in the context of the request that opens the relay.
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
            raise RelayError(
                f"methods of {self!r} must be called from its event loop's thread: from other threads use "
                "loop.call_soon_threadsafe(relay.notify, key)"
            )

    def _check(self, key: str) -> None:
        for purgatory in self._purgatories:
            try:
                purgatory.check_and_complete_soon(key)
            except Exception as exception:  # from another key's __eq__
                report(self._loop, "looking up a watched key raised", exception)

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
