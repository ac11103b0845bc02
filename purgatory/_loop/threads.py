"""The check of the calling event loop and thread, and the mailbox, which is the one door for all other callers.

A purgatory belongs to one event loop. Callbacks of that loop may call everything. Other threads, handlers of
`signal.signal`, finalizers and weakref callbacks may interrupt the loop's thread in the middle of a change. So they
have one door, as with asyncio's `call_soon_threadsafe` and trio's `run_sync_soon`. They append to a mailbox, and the
loop takes the values out on its next iteration.

A call that does not use the door is refused if the purgatory's loop runs in another thread, or if another loop runs in
this one. While the loop does not run, for example before it is closed, every thread may call.
"""

from asyncio import AbstractEventLoop, _get_running_loop
from collections.abc import Callable
from contextvars import Context
from time import monotonic
from typing import Final, Generic, TypeVar

from purgatory._loop.errors import PurgatoryMisuse

T = TypeVar("T")

LOST: Final = 1.0
"""Seconds after which a call of the loop counts as lost, because a signal's handler has raised at its beginning."""


def running_loop(what: object, loop: AbstractEventLoop | None, call: str, instead: str = "") -> AbstractEventLoop:
    """Return the running loop, which must be `loop` unless that is `None`. The arguments are those of `check_loop`.

    Raises:
        PurgatoryMisuse: `loop` is closed, another loop runs in this thread, or no loop runs in it.
        RuntimeError: No loop runs in this thread and `loop` is `None`.
    """
    if loop is not None and loop.is_closed():
        raise PurgatoryMisuse(f"{what!r} belongs to an event loop that is closed: make one for each loop")
    running = _get_running_loop()
    if running is None:
        if loop is None:
            raise RuntimeError(
                "no running asyncio event loop: call it in a coroutine that asyncio runs, and not trio. In a web "
                "framework, make the handler async def"
            )
        raise _wrong_thread(call, instead)
    if loop is not None and running is not loop:
        if loop.is_running():
            raise _wrong_thread(call, instead)
        raise PurgatoryMisuse(f"{what!r} belongs to another event loop than the running one: make one for each loop")
    return running


def check_loop(what: object, loop: AbstractEventLoop | None, call: str, instead: str = "") -> None:
    """Refuse a call from the wrong thread: `loop` runs in another one, or another loop runs in this one.

    While no loop runs, every thread may call.

    Args:
        what: The object that was called, for the message.
        loop: The loop that it belongs to, if it belongs to one yet.
        call: The call, as code, for example `tracker.touch(key)`.
        instead: The right call for other threads, unless it is `call_soon_threadsafe` with this one.

    Raises:
        PurgatoryMisuse: The call comes from the wrong thread or event loop, or `loop` is closed.
    """
    running = _get_running_loop()
    if running is not loop and loop is not None and (running is not None or loop.is_running()):
        running_loop(what, loop, call, instead)


def _wrong_thread(call: str, instead: str) -> PurgatoryMisuse:
    called, _, arguments = call.rstrip(")").partition("(")
    if not instead:
        instead = f"loop.call_soon_threadsafe({', '.join(filter(None, (called, arguments)))})"
    return PurgatoryMisuse(
        f"{called.rpartition('.')[2]}() must be called from its event loop's thread: from other threads use {instead}"
    )


class Mailbox(Generic[T]):
    """Distinct values from any thread, signal handler or finalizer, for a callback of the event loop.

    A value that is put again before it was taken is not added, so the mailbox never grows beyond the distinct values.

        mailbox: Mailbox[str] = Mailbox(lambda: handle_all(mailbox.take()))
        mailbox.put("topic-1", loop)  # from any thread
    """

    def __init__(self, take: Callable[[], object]) -> None:
        """Call `take()` on the loop when there are values, or when it was woken without any."""
        self._values: dict[T, None] = {}
        self._take = take
        self._is_due = False
        self._asked = 0.0
        """When the loop was woken, in real time."""

    def __len__(self) -> int:
        """Return how many values have not been taken."""
        return len(self._values)

    def add(self, value: T) -> None:
        """Add `value`, which must be hashable, without waking a loop."""
        while True:
            values = self._values
            values[value] = None
            if values is self._values:
                return
            # They were taken while its `__hash__` ran: perhaps without this one.

    def discard(self, value: T) -> None:
        """Remove `value`, if it is there."""
        self._values.pop(value, None)

    def look(self) -> list[T]:
        """Return the values that have not been taken, in their order."""
        return list(self._values)

    def put(self, value: T, loop: AbstractEventLoop) -> None:
        """Add `value`, and wake `loop` if that is needed.

        Raises:
            RuntimeError: `loop` is closed, and the mailbox is empty now.
        """
        self.add(value)
        self.wake(loop)

    def take(self) -> list[T]:
        """Take all values out, in their order."""
        values, self._values = self._values, {}
        return list(values)

    def wake(self, loop: AbstractEventLoop) -> None:
        """Wake `loop`, unless it was woken already. Raises as `put`."""
        # The flag is set before the loop is called, and reset before values are taken: no value stays behind.
        now = monotonic()
        if not self._is_due or now >= self._asked + LOST or loop.is_closed():
            self._is_due = True
            self._asked = now
            try:
                loop.call_soon_threadsafe(self._deliver, context=Context())
            except BaseException:
                self._is_due = False
                if loop.is_closed():
                    self._values.clear()
                else:  # the handler of a signal has raised here, and may have put a value
                    loop.call_soon_threadsafe(self._deliver, context=Context())
                raise

    def _deliver(self) -> None:
        self._is_due = False
        self._take()
