"""Checks of arguments, made before anything changes."""

import math
from collections.abc import Callable, Hashable, Iterable
from inspect import isasyncgenfunction, iscoroutinefunction
from types import WrapperDescriptorType
from typing import Literal, NoReturn, TypeAlias

Bound: TypeAlias = Literal["not negative", "positive", ""]


def seconds(name: str, value: float, bound: Bound = "not negative", *, none: bool = False) -> float:
    """Return `value`, a number of seconds, as a `float`.

    Args:
        name: The argument's name, for the message.
        value: An `int` or a `float`.
        bound: The condition besides finite.
        none: Whether the messages mention that `None` is allowed too.

    Raises:
        TypeError: `value` is neither an `int` nor a `float`, for example a `Decimal`.
        ValueError: `value` is NaN, infinite or out of `bound`.
    """
    if type(value) is float and 0.0 < value < math.inf:
        return value
    if not isinstance(value, (int, float)):
        hint = f": call float({name}) first" if hasattr(value, "__float__") else ""
        raise TypeError(f"{name} must be a number of seconds{', or None' if none else ''}, not {value!r}{hint}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or (bound and number < 0.0) or (bound == "positive" and number == 0.0):
        expected = f"finite and {bound}" if bound else "finite"
        raise ValueError(f"{name} must be {expected}{', or None for never' if none else ''}, not {value!r}")
    return number


def check_time(name: str, value: float) -> None:
    """Raise `TypeError` unless `value` is an `int` or a `float`, `ValueError` if it is NaN."""
    if not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, not {value!r}")
    if value != value:
        raise ValueError(f"{name} must be a number of seconds, not NaN")


def check_count(name: str, value: int, least: int) -> None:
    """Raise `TypeError` unless `value` is an `int`, `ValueError` if it is less than `least`."""
    if not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value!r}")


def is_async(function: object) -> bool:
    """Whether calling `function` does nothing yet, because the result would have to be awaited or iterated."""
    return iscoroutinefunction(function) or isasyncgenfunction(function)


def check_callable(name: str, callback: Callable[..., object]) -> None:
    """Raise `TypeError` unless `callback` is callable."""
    if not callable(callback):
        raise TypeError(f"{name} must be callable, not {callback!r}")


def check_callback(name: str, callback: Callable[..., object]) -> None:
    """Raise `TypeError` unless `callback` is callable and not `async`."""
    check_callable(name, callback)
    call = type(callback).__call__
    # Functions, methods and partials are called by C, which tells nothing and takes a microsecond to look at.
    if is_async(callback) or (type(call) is not WrapperDescriptorType and is_async(call)):
        raise TypeError(f"{name} must not be async, because its result is not awaited: {callback!r}")


def distinct_keys(keys: Iterable[Hashable]) -> tuple[Hashable, ...]:
    """Return the keys to watch an operation on, each once.

    Raises:
        TypeError: `keys` is not an iterable, or is a `str` or `bytes`, or a key is not hashable.
    """
    if isinstance(keys, (str, bytes)):
        raise TypeError(
            f"keys must be an iterable of keys, not the {type(keys).__qualname__} {keys!r}: "
            f"call try_complete_else_watch(operation, [{keys!r}])"
        )
    try:
        return tuple(dict.fromkeys(keys))
    except TypeError as error:
        if "unhashable" in str(error):
            raise TypeError(f"a key must be hashable: {error}") from None
        if hasattr(keys, "__iter__") or hasattr(keys, "__getitem__"):
            raise
        raise TypeError(
            f"keys must be an iterable of keys, not {keys!r}: call try_complete_else_watch(operation, [key])"
        ) from None


def refuse_task(task: object) -> NoReturn:
    """Raise `TypeError`, because `task` is not a task that a timer can run."""
    if isinstance(task, type):
        raise TypeError(f"task must be a TimerTask, not the class {task.__qualname__}: pass {task.__qualname__}(...)")
    if not getattr(task, "_timer_is_task", True):
        raise TypeError(f"task must be a TimerTask, not the operation {task!r}: call its own reschedule() or cancel()")
    if hasattr(task, "_timer_expire"):
        raise TypeError(f"{type(task).__qualname__}.__init__ must call super().__init__()")
    raise TypeError(f"task must be a TimerTask, not {task!r}")
