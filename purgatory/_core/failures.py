"""The exception of a failed operation, and the frames that its traceback holds."""

from collections.abc import Set
from contextlib import suppress
from types import CodeType, FrameType

from purgatory._core.clock import Clock, report

__all__ = ["Failure", "clear_frames", "own_frames"]


class Failure:
    """The exception that made an operation fail, until it is retrieved or collected."""

    __slots__ = ("clock", "exception", "operation", "retrieved")

    def __init__(self, exception: BaseException, operation: str, clock: Clock | None) -> None:
        self.exception = exception
        self.operation = operation
        self.clock = clock
        self.retrieved = isinstance(exception, (SystemExit, KeyboardInterrupt))  # these are raised at once

    def __del__(self) -> None:
        if not self.retrieved:
            message = f"{self.operation} failed, and its exception was never retrieved"
            report(self.clock, message, self.exception)


def own_frames(exception: BaseException, operation: object, ours: Set[CodeType]) -> list[FrameType]:
    """The frames that hold `operation` because of `exception`, which is being handled in the first of its traceback.

    Inwards these are its methods and their callees, in the tracebacks of the exception and of the ones that it was
    raised from. An exception that was raised before and is raised again has further frames behind these, and one that
    the caller is handling begins in a frame of the caller's: those are not ours. Outwards, by `f_back`, these are our
    methods and `try_complete`; `ours` is the code of the methods.
    """
    frames: dict[FrameType, None] = {}
    if exception.__traceback__ is not None:
        frames[exception.__traceback__.tb_frame] = None
    exceptions: list[BaseException | None] = [exception]
    seen: set[int] = set()
    while exceptions:
        each = exceptions.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        traceback = each.__traceback__
        if traceback is not None and traceback.tb_frame in frames:
            while (deeper := traceback.tb_next) is not None and deeper.tb_frame.f_back is traceback.tb_frame:
                frames[deeper.tb_frame] = None
                traceback = deeper
        exceptions += (each.__cause__, each.__context__)
        if isinstance(each, BaseExceptionGroup):
            exceptions += each.exceptions
    codes = {getattr(vars(base).get("try_complete"), "__code__", None) for base in type(operation).__mro__} | ours
    back = None if exception.__traceback__ is None else exception.__traceback__.tb_frame.f_back
    while back is not None:
        is_own = back.f_code in codes or (
            back.f_code.co_name == "try_complete_else_watch"
            and back.f_globals.get("__name__") == "purgatory._core.purgatory"
        )
        if not is_own:
            break
        frames[back] = None
        back = back.f_back
    return list(frames)


def clear_frames(frames: list[FrameType]) -> None:
    """Clear finished frames.

    A failed operation holds its exception, which holds its traceback, which holds the frames of the operation's
    methods, which hold the operation: it would stay until the garbage collector comes.
    """
    for frame in frames:
        with suppress(RuntimeError):  # it is running
            frame.clear()
