"""Sending the answer of a parked request through middlewares."""

import asyncio
from asyncio import Task
from collections.abc import Coroutine, Generator
from contextvars import Context
from functools import partial
from types import coroutine
from typing import TYPE_CHECKING, Any, Final

from purgatory.asgi.interface import Message, Parked, logger
from purgatory.asgi.middleware import Wrappers

if TYPE_CHECKING:
    from purgatory.asgi.parking import Answering

_tasks: Final[set[Task[None]]] = set()
"""The event loop keeps only weak references."""


class Through:
    """A parked request whose messages go through the middlewares that have wrapped `send`.

    Their coroutines are driven to their end at once, so no task is needed. If one really waits, a task does the rest:
    later messages follow it, and the response pauses. Messages that are sent from a task, such as the head of an event
    stream, get a task too.
    """

    __slots__ = ("_answering", "_context", "_parked", "_send", "_unsent", "_wrappers")

    def __init__(self, parked: Parked, answering: "Answering", wrappers: Wrappers, context: Context) -> None:
        """Send through `wrappers`, in the context of the request."""
        self._parked = parked
        self._answering = answering
        self._send = wrappers.outer
        self._wrappers: Wrappers | None = wrappers
        self._context = context
        self._unsent: list[Message] | None = None
        """The messages of the task."""

    def send(self, *messages: Message) -> None:
        """Send messages of ASGI's `send`. Raise the exceptions of the middlewares and of the server."""
        if self._unsent is not None:
            self._unsent += messages
            return
        unsent = list(messages)
        sending = self._send_all(unsent)
        if asyncio.current_task() is None:
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
