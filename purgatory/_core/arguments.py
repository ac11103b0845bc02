"""Checks of arguments, in one place for the whole package, before anything changes."""

import math
from collections.abc import Callable
from inspect import isasyncgenfunction, iscoroutinefunction
from types import WrapperDescriptorType
from typing import Literal, NoReturn, SupportsFloat, TypeAlias

__all__ = ["check_callback", "check_count", "is_async", "refuse_copy", "seconds"]

Bound: TypeAlias = Literal["not negative", "positive", ""]


def seconds(name: str, value: SupportsFloat, bound: Bound = "not negative", *, none: bool = False) -> float:
    """Return `value`, a number of seconds, as a `float`.

    Any real number will do, a `Decimal` for one. Raises `TypeError` for anything else, and `ValueError` for NaN,
    infinity and values out of `bound`. With `none` the messages mention that `None` will do too.
    """
    try:
        if isinstance(value, (str, bytes, bytearray)):
            raise TypeError
        number = float(value)
    except OverflowError:
        number = math.inf
    except TypeError:
        raise TypeError(f"{name} must be a number of seconds{' or None' if none else ''}, not {value!r}") from None
    except ValueError:  # a signalling NaN of `decimal`
        number = math.nan
    valid = math.isfinite(number) and (bound == "" or number > 0.0 or (number == 0.0 and bound == "not negative"))
    if not valid:
        expected = f"finite and {bound}" if bound else "finite"
        raise ValueError(f"{name} must be {expected}{', or None for never' if none else ''}, not {value!r}")
    return number


def check_count(name: str, value: int, least: int) -> None:
    """Raise `TypeError` unless `value` is an `int`, `ValueError` if it is less than `least`."""
    if not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value!r}")


def is_async(function: object) -> bool:
    """Whether calling `function` does nothing yet, because the result would have to be awaited or iterated."""
    return iscoroutinefunction(function) or isasyncgenfunction(function)


def check_callback(name: str, callback: Callable[..., object]) -> None:
    """Raise `TypeError` unless `callback` is callable, and not `async`."""
    if not callable(callback):
        raise TypeError(f"{name} must be callable, not {callback!r}")
    call = type(callback).__call__
    # Of functions, methods and partials the call is C's own: no second look is worth its microsecond.
    if is_async(callback) or (type(call) is not WrapperDescriptorType and is_async(call)):
        raise TypeError(f"{name} must not be async, as its result is not awaited: {callback!r}")


def refuse_copy(what: object) -> NoReturn:
    """Raise `TypeError`, for `__reduce_ex__`: neither `copy` nor `pickle` can make a second one."""
    raise TypeError(f"cannot copy or pickle a {type(what).__qualname__}")
