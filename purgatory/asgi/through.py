"""Sending the answer of a parked request through middlewares."""

import asyncio
from asyncio import Task
from collections.abc import Coroutine, Generator
from contextvars import Context
from functools import partial
from types import coroutine
from typing import TYPE_CHECKING, Any, ClassVar, Final

from purgatory.asgi.interface import Message, Parked, Send, logger
from purgatory.asgi.middleware import Wrappers

if TYPE_CHECKING:
    from purgatory.asgi.parking import Answering

_tasks: Final[set[Task[None]]] = set()
"""The event loop keeps only weak references."""


_KEPT: Final = 1.0
"""Seconds for which what came out last is kept, because the settings of a middleware may change."""


class Through:
    """A parked request whose messages go through the middlewares that have wrapped `send`.

    Their coroutines are driven to their end at once, so no task is needed. If one really waits, a task does the rest:
    later messages follow it, and the response pauses. Messages that are sent from a task, such as the head of an event
    stream, get a task too.
    """

    __slots__ = ("_answering", "_context", "_most_at_once", "_parked", "_send", "_unsent", "_wrappers")

    is_known: ClassVar[bool] = False
    """Whether the wrappers may begin in a task that isn't theirs, because they set no time limit."""

    def __init__(
        self,
        parked: Parked,
        answering: "Answering",
        send: Send,
        context: Context,
        wrappers: Wrappers,
    ) -> None:
        """Send by `send`, the outermost of `wrappers`, in the context of the request."""
        self._parked = parked
        self._answering = answering
        self._send = send
        self._context = context
        self._most_at_once = wrappers.most_at_once
        self._wrappers: Wrappers | None = wrappers
        self._unsent: list[Message] | None = None
        """The messages of the task."""

    def send(self, *messages: Message) -> None:
        """Send messages of ASGI's `send`. Raise the exceptions of the middlewares and of the server."""
        if self._unsent is not None:
            self._unsent += messages
            return
        unsent = list(messages)
        sending = self._send_all(unsent)
        is_small = all(len(message.get("body", b"")) < self._most_at_once for message in messages)
        if is_small and (self.is_known or asyncio.current_task() is None):
            try:
                awaited = self._context.run(sending.send, None)
            except StopIteration:
                return
            sending = _rest(sending, awaited)
        # Otherwise it would begin in a task that is not its own, and a time limit that it sets would apply to that.
        self._unsent = unsent
        task = asyncio.get_running_loop().create_task(sending, context=self._context)
        _tasks.add(task)
        task.add_done_callback(self._sent)
        self._answering.pause_writing()

    def release(self) -> None:
        """Drop the parts of the request that the wrappers hold and no longer need."""
        assert self._wrappers is not None, "the application has returned once"
        self._wrappers.release()
        self._wrappers = None

    @property
    def is_sent(self) -> bool:
        """Whether all messages have been sent."""
        return self._unsent is None

    def close(self) -> None:
        """Close the connection without the rest of the response."""
        self._parked.close()

    async def _send_all(self, messages: list[Message]) -> None:
        for message in messages:  # the list may grow while a middleware waits
            await self._send(message)
        self._unsent = None

    def _sent(self, task: Task[None]) -> None:
        _tasks.discard(task)
        if not task.cancelled() and task.exception() is None:
            self._answering.resume_writing()
            return
        logger.error("a parked request cannot be answered", exc_info=None if task.cancelled() else task.exception())
        self._answering.disconnected()
        self.close()


class _ThroughKnown(Through):
    __slots__ = ()

    is_known = True


class Alike:
    """The wrappers of many requests, which all change equal messages in the same way.

    It has unused wrappers of its own, so the requests keep none, and what came out last is sent again for equal
    messages. So a thousand equal answers are compressed once.
    """

    __slots__ = ("__weakref__", "_changed", "_messages", "_wrappers")

    def __init__(self, wrappers: Wrappers) -> None:
        self._wrappers = wrappers.unused()
        self._messages: list[Message] = []
        """The last messages that were sent without waiting."""
        self._changed: list[Message] = []
        """What the wrappers have made of them."""

    def send(self, parked: Parked, answering: "Answering", messages: tuple[Message, ...]) -> None:
        """Send messages of a request."""
        if self._messages == list(messages):
            parked.send(*self._changed)
            return
        before = [_copied(message) for message in messages]  # a wrapper may change them in place
        changed: list[Message] = []
        head: list[Message] = []

        async def end(message: Message) -> None:
            changed.append(_copied(message))
            head.append(message)
            if message["type"] != "http.response.start":
                parked.send(*head)
                head.clear()

        through = _ThroughKnown(parked, answering, self._wrappers.around(end), Context(), self._wrappers)
        through.send(*messages)
        if through.is_sent:
            if not self._messages:
                asyncio.get_running_loop().call_later(_KEPT, self._forget, context=Context())
            self._messages, self._changed = before, changed

    def _forget(self) -> None:
        self._messages, self._changed = [], []


def _copied(message: Message) -> Message:
    return {**message, "headers": list(message["headers"])} if "headers" in message else {**message}


class OneOfAlike:
    """A parked request whose messages go through wrappers that it shares with others."""

    __slots__ = ("_alike", "_answering", "_parked")

    def __init__(self, parked: Parked, answering: "Answering", alike: Alike) -> None:
        self._parked = parked
        self._answering = answering
        self._alike = alike

    def send(self, *messages: Message) -> None:
        """Send messages of ASGI's `send`. Raise the exceptions of the middlewares and of the server."""
        self._alike.send(self._parked, self._answering, messages)

    def close(self) -> None:
        """Close the connection without the rest of the response."""
        self._parked.close()


async def _rest(started: Coroutine[Any, Any, None], awaited: Any) -> None:
    await _driven(started, awaited)


@coroutine
def _driven(started: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """Drive a coroutine on in a task. It was started outside of one, and then awaited `awaited`."""
    while True:
        try:
            result = yield awaited
        except BaseException as exception:
            step = partial(started.throw, exception)
        else:
            step = partial(started.send, result)
        try:
            awaited = step()
        except StopIteration:
            return
