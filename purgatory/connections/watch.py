"""What the connections of an event loop share while they rest: one descriptor that the loop watches, and a timer."""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, Final, Protocol

from purgatory import IdleTracker
from purgatory.connections.descriptors import Epoll, Kqueue, descriptors

logger: Final = logging.getLogger("purgatory.connections")

RETRY: Final = 1.0
"""Seconds after which a connection tries to rest again that had something to write, or found no free descriptor."""

MANY: Final = 256
"""With more connections than this about to rest, a new one rests after `SOON`. Each has a transport until then, and its
kibibyte stays in the heap if all peers come at once, as after a deployment."""

SOON: Final = 0.05
"""Seconds after which it does."""


class Member(Protocol):
    """A connection, as the others know it."""

    def __hash__(self) -> int: ...

    def cool(self) -> None:
        """Give up the transport, if there is nothing to do for it."""

    def look(self) -> bool:
        """Look what has come."""


class Watch:
    """Sees when the peers of cold connections send something or hang up."""

    def __init__(self, rest_after: float) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.idle: IdleTracker[Member] = IdleTracker(rest_after, on_idle=lambda member: member.cool())
        """The connections that will rest after a while."""
        self.limits: tuple[int, int] = (0, 0)
        """The limits of the last transport's buffer. Most have the same."""
        self.can_replace: bool | None = None
        """Whether the event loop lets another protocol take over a transport, or `None` before the first one."""
        self.num_members: int = 0
        self.num_cold: int = 0
        self._members: list[Member | None] = []
        """The connections by descriptor, which is a small number, so that a list takes less memory than a dict."""
        self._others: set[Member] = set()
        """Those without a descriptor."""
        self._poll: Epoll | Kqueue | None = None
        """Closed with the last cold connection, so that a server leaves no descriptor behind."""
        self._tasks: set[asyncio.Task[Any]] = set()
        """They make transports. The event loop keeps only weak references."""
        self._waiters: list[asyncio.Future[None]] = []
        self._transport_waiters: dict[Member, list[asyncio.Future[None]]] = {}
        """Those that wait for a transport."""
        self._logged: set[str] = set()

    def members(self) -> list[Any]:
        """Return all connections."""
        return [*self._others, *(member for member in self._members if member is not None)]

    def warn_once(self, text: str, *arguments: object) -> None:
        """Log a warning unless it was logged before."""
        if text not in self._logged:
            self._logged.add(text)
            logger.warning(text, *arguments)

    def warn_unable(self) -> None:
        """Log once that the event loop can't do what is needed."""
        kind = type(self.loop)
        self.warn_once(
            "connections keep their transports, and take a kibibyte more, because the event loop %s can't watch a "
            "descriptor or replace a protocol: use uvloop or asyncio's own selector loop",
            f"{kind.__module__}.{kind.__qualname__}",
        )

    def enter(self, member: Member, descriptor: int) -> None:
        """Take in a connection that has a transport, and perhaps a descriptor, or else -1."""
        self.num_members += 1
        if descriptor < 0:
            self._others.add(member)
        else:
            self._place(member, descriptor)

    def _place(self, member: Member, descriptor: int) -> None:
        self._members += [None] * (descriptor + 1 - len(self._members))
        self._members[descriptor] = member

    def leave(self, member: Member, descriptor: int) -> None:
        """Let other connections have a descriptor that one of them had."""
        if self._members[descriptor] is member:  # otherwise another one has got it already
            self._members[descriptor] = None

    def cool(self, member: Member, before: int, descriptor: int, *, is_watched: bool) -> None:
        """Watch a descriptor for a connection that gets cold, and that had another one before."""
        if self._poll is None:
            poll = descriptors()
            # In a context of its own, because the loop keeps that for as long as connections of many contexts are cold.
            copy_context().run(self.loop.add_reader, poll.fileno(), self._look)
            self._poll = poll
        try:
            if is_watched:
                self._poll.add(descriptor)
        except OSError:
            self._close_if_empty()
            raise
        self.leave(member, before)
        self._place(member, descriptor)
        self.num_cold += 1

    def warm(self, descriptor: int, *, is_watched: bool) -> None:
        """Stop watching the descriptor of a connection that is not cold any more."""
        assert self._poll is not None
        if is_watched:
            self._poll.remove(descriptor)
        self.num_cold -= 1
        self._close_if_empty()

    def pause(self, descriptor: int) -> None:
        """Stop watching a descriptor whose connection remains cold: it would be found ready again and again."""
        assert self._poll is not None
        self._poll.remove(descriptor)

    def resume(self, descriptor: int) -> None:
        """Watch a descriptor again."""
        assert self._poll is not None
        self._poll.add(descriptor)

    def make(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        connection: socket.socket,
        context: Any,
        failed: Callable[[BaseException | None], None],
        made: Callable[[], None],
    ) -> None:
        """Let the loop make a transport, in a context. `failed` is called if it can't, `made` before it reads."""

        def done(task: asyncio.Task[Any]) -> None:
            self._tasks.discard(task)
            if task.cancelled():  # by an application that cancels all tasks
                failed(None)
            elif task.exception() is not None:
                failed(task.exception())

        making = self.loop.connect_accepted_socket(factory, connection)
        task = self.loop.create_task(making, context=context)
        self._tasks.add(task)
        task.add_done_callback(done)
        # uvloop begins to read after connection_made. This comes right behind it, and before the loop polls.
        self.loop.call_soon(self.loop.call_soon, made)

    async def wait_for_transport(self, member: Member) -> None:
        """Wait until a connection has a transport. Raise `ConnectionError` if it is lost before."""
        waiter = self.loop.create_future()
        self._transport_waiters.setdefault(member, []).append(waiter)
        await waiter

    def has_transport(self, member: Member) -> None:
        """Wake those that wait for the transport of a connection."""
        for waiter in self._transport_waiters.pop(member, ()):
            if not waiter.done():
                waiter.set_result(None)

    def forget(self, member: Member, descriptor: int) -> None:
        """Forget a connection that is lost, or that does not rest any more."""
        self.num_members -= 1
        self.idle.discard(member)
        self._others.discard(member)
        if descriptor >= 0:
            self.leave(member, descriptor)
        for waiter in self._transport_waiters.pop(member, ()):
            if not waiter.done():
                waiter.set_exception(ConnectionError("the connection is closed"))
        if not self.num_members:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def wait_closed(self) -> None:
        """Wait until there is no connection."""
        while self.num_members:
            waiter = self.loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def _close_if_empty(self) -> None:
        if self._poll is not None and not self.num_cold:
            self.loop.remove_reader(self._poll.fileno())
            self._poll.close()
            self._poll = None

    def _look(self) -> None:
        for descriptor in [] if self._poll is None else self._poll.ready():
            member = self._members[descriptor]
            if member is not None:  # otherwise the one before has ended it
                member.look()
