"""The relay: tells other processes which keys to check, and checks here which they tell of."""

import asyncio
import logging
import math
from asyncio import _get_running_loop
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from purgatory.clock import check_callback, report
from purgatory.errors import PurgatoryError
from purgatory.purgatory import DelayedOperationPurgatory
from purgatory.relay.broker import Broker
from purgatory.relay.payload import check_key, decode, encode

if TYPE_CHECKING:
    from purgatory.relay.inbox import Inbox
    from purgatory.relay.link import Link

__all__ = ["Relay", "RelayError", "RelayStatistics"]

_log = logging.getLogger("purgatory")

_CLOSING: Final = 5.0
"""Seconds that a close waits for the broker to take what is left."""


class RelayError(PurgatoryError):
    """The broker cannot be reached at the start, or a relay is used that is not open."""


@dataclass(frozen=True, slots=True)
class RelayStatistics:
    """What a relay has done so far, and what waits."""

    connected: bool
    """Whether it is connected to the broker."""
    notified: int
    """Keys given to `notify`, the same one as often as it was."""
    published: int
    """Messages that the broker has taken."""
    received: int
    """Messages that came from others."""
    malformed: int
    """Messages that could not be read, and were ignored."""
    reconnects: int
    """How often a lost connection was made anew."""
    failures: int
    """How often `refresh` or `invalidate` has failed."""
    unpublished: int
    """Keys that wait to be published; one if they have collapsed to *everything*."""
    unchecked: int
    """Keys from others that wait to be looked at here, or to be tried again; one for *everything*."""


class Relay:
    """Carries notifications of changed keys between the purgatories of several processes.

        async with Relay(purgatory, broker=PostgresBroker(dsn)) as relay:
            ...                        # change the state
            relay.notify("topic-1")    # checks the key here and in every other process

    What it promises is in the docstring of the package. Belongs to one event loop and its thread. Serves once.
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
        """Check keys in `purgatories`, and in those of all who use the same channel of `broker`.

        Without a broker there are no others, and nothing else is needed.

        `refresh` is awaited with keys that have changed elsewhere, watched here or not, before they are checked: there
        a process brings up to date what it remembers of a state that is kept in a database, say. It gets up to a
        thousand keys at a time; one that is notified meanwhile comes again. If it raises, that goes to the loop's
        exception handler. Halves of these keys are tried at once, down to those that are to blame, and what is left
        after a while again. That holds up no other keys. It is called once at a time: a time-out is its own business.
        When it is not known which keys have changed, because there was no connection, or there were too many, it gets
        all that are watched. Before that, `invalidate()` is called: what a process remembers of other keys may be
        outdated too, and is to be forgotten. What somebody began to read before that, and has only then, must not be
        remembered either.

        The broker is pinged each `heartbeat` seconds, and is given up if it does not answer anything for as long. Up
        to `max_keys` keys wait to be published, and as many to be looked at here; more collapse to "everything".

        Raises `TypeError` or `ValueError` for values of the wrong type or out of range.
        """
        for purgatory in purgatories:
            if not isinstance(purgatory, DelayedOperationPurgatory):
                raise TypeError(f"a relay checks keys in purgatories, not in {purgatory!r}")
        if broker is not None and not callable(getattr(broker, "connect", None)):
            raise TypeError(f"a broker has a connect(), which {broker!r} has not")
        if refresh is not None and not callable(refresh):
            raise TypeError(f"refresh is called and awaited, which {refresh!r} cannot be")
        if invalidate is not None:
            check_callback("invalidate", invalidate)
        if not isinstance(heartbeat, (int, float)):
            raise TypeError(f"heartbeat must be a number of seconds, not {heartbeat!r}")
        if not (heartbeat > 0 and math.isfinite(heartbeat)):
            raise ValueError(f"heartbeat must be positive and finite, not {heartbeat!r}")
        if not isinstance(max_keys, int):
            raise TypeError(f"max_keys must be an int, not {max_keys!r}")
        if max_keys < 1:
            raise ValueError(f"max_keys must be at least 1, not {max_keys!r}")
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
        """Wait some seconds for the broker to take what is left, and disconnect."""
        try:
            if self._link is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CLOSING):
                        while not self._link.idle:
                            await self._link.flush()
        finally:
            await self._close()
            if self._link is not None and not self._link.idle:
                _log.warning("%r has closed, and its broker has not taken all that was notified", self)

    @property
    def connected(self) -> bool:
        """Whether there is a connection to the broker: as far as is known, `notify` reaches the other processes."""
        return self._link is not None and self._link.connected

    def statistics(self) -> RelayStatistics:
        """What the relay has done so far, and what waits."""
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

        Has them checked here on the next turn of the loop, and in all other processes as soon as the broker has told
        them. Returns at once. Raises, with nothing done: `TypeError` for a key that is no `str`, `ValueError` for one
        that is too long to be sent (7,935 bytes as JSON), `RelayError` if the relay is not open, or on another thread.
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
        """What to publish on the broker's channel instead of `notify(*keys)`, for whoever can do that better.

        In a transaction of PostgreSQL, `SELECT pg_notify(channel, payload)` for each of them is sent if and only if it
        commits. They reach this process, too: it checks the keys when they come back. Raises as `notify` for the keys.
        """
        if isinstance(keys, str):
            raise TypeError(f"keys must be an iterable of keys, not the str {keys!r}")
        keys = list(keys)
        for key in keys:
            check_key(key)
        return list(encode(dict.fromkeys(keys)))

    async def flush(self) -> None:
        """Return when the broker has taken everything that was given to `notify` so far.

        Waits for as long as the broker is away. Raises `RelayError` if the relay is not open, or is closed meanwhile.
        """
        self._check_open()
        if self._link is not None and not await self._link.flush():
            raise RelayError(f"{self!r} was closed before the broker had taken everything")

    async def _connect(self, broker: Broker) -> None:
        # Here, as they need the extra.
        from purgatory.relay.inbox import Inbox
        from purgatory.relay.link import Link

        inbox = Inbox(self._purgatories, self._max_keys, self._check, self._refresh, self._invalidate)
        # Not before: a process that was forked meanwhile is another one.
        self._sender = uuid4().hex
        link = Link(
            broker, self._sender, self._heartbeat, self._max_keys, self._receive, subscribed=lambda: inbox.add(None)
        )
        self._inbox = inbox
        self._link = link
        self._tasks = [asyncio.create_task(link.run()), asyncio.create_task(inbox.run())]
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
            raise RelayError(f"{self!r} is used in its `async with`")
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
            message = "the relay ignores a message that is none of its own kind"
            report(self._loop, message, exception, payload=payload[:100])
            return
        if sender != self._sender:
            self._received += 1
            self._inbox.add(keys)
