"""Which event loop and which thread may call, in one place for the whole package."""

from asyncio import AbstractEventLoop, _get_running_loop

from purgatory._core.errors import PurgatoryMisuse

__all__ = ["check_loop", "running_loop", "wrong_thread"]


def running_loop(what: object, loop: AbstractEventLoop | None, call: str, instead: str = "") -> AbstractEventLoop:
    """Return the running loop, which must be `loop`, the one that `what` belongs to, unless that is `None`.

    Raises `PurgatoryMisuse` if that is closed, if another loop runs or if no loop runs in this thread, `RuntimeError`,
    as asyncio does, if no loop runs and `what` belongs to none yet. `call` is what was called, as code, and `instead`
    the right call where it is not `call_soon_threadsafe` of that.
    """
    if loop is not None and loop.is_closed():
        raise PurgatoryMisuse(f"{what!r} belongs to an event loop that is closed")
    running = _get_running_loop()
    if running is None:
        if loop is None:
            raise RuntimeError("no running event loop")
        raise wrong_thread(call, instead)
    if loop is not None and running is not loop:
        raise PurgatoryMisuse(f"{what!r} belongs to another event loop than the running one")
    return running


def check_loop(what: object, loop: AbstractEventLoop, call: str) -> None:
    """Raise `PurgatoryMisuse` if `call` would not run on `loop`, the one that `what` belongs to.

    That is so if `loop` is closed or runs in another thread, or if another loop runs in this one. No loop need run.
    """
    running = _get_running_loop()
    if loop.is_closed() or (running is not loop and (running is not None or loop.is_running())):
        running_loop(what, loop, call)


def wrong_thread(call: str, instead: str = "") -> PurgatoryMisuse:
    """The error for a `call` that came from another thread than the loop's; `instead` is the right one, as code."""
    called, _, arguments = call.rstrip(")").partition("(")
    if not instead:
        instead = f"loop.call_soon_threadsafe({', '.join(filter(None, (called, arguments)))})"
    return PurgatoryMisuse(
        f"{called.rpartition('.')[2]}() is not for other threads than that of its event loop: use {instead}"
    )
