"""The short form of an operation: a predicate instead of a class."""

from collections.abc import Callable, Hashable
from inspect import iscoroutine
from typing import Generic, TypeVar

from purgatory._core.operation import DelayedOperation
from purgatory._loop.arguments import check_callback

T = TypeVar("T")


class DelayedPredicate(DelayedOperation[T], Generic[T]):
    """Waits until a predicate is true. The result is its last value."""

    __slots__ = ("__weakref__", "_predicate", "_value")

    _value: T

    def __init__(self, predicate: Callable[[], T], timeout: float | None) -> None:
        super().__init__(timeout)
        self._predicate = predicate

    def try_complete(self) -> bool:
        self._value = value = self._predicate()
        if not value:
            return False
        if iscoroutine(value):
            value.close()
            raise TypeError(f"the predicate {self._predicate!r} must not be async: it returned a coroutine")
        return self.force_complete()

    def on_complete(self) -> T:
        return self._value

    def _purgatory_describe(self) -> str:
        predicate = getattr(self._predicate, "__qualname__", self._predicate)
        return f"{super()._purgatory_describe()}, predicate {predicate}"


def check_predicate(predicate: Callable[[], object], keys: tuple[Hashable, ...], timeout: float | None) -> None:
    """Refuse wrong arguments of `wait_for`."""
    if not callable(predicate):
        raise TypeError(
            f"predicate must be a function that is called again and again, not {predicate!r}: "
            "call wait_for(lambda: condition, *keys)"
        )
    check_callback("predicate", predicate)
    if not keys:
        raise ValueError(
            "wait_for needs a key, because nothing polls: the predicate is called again when "
            "check_and_complete(key) is. Call wait_for(predicate, key)"
        )
    for key in keys:
        if type(key).__hash__ is None:
            raise TypeError(
                f"a key must be hashable, not the {type(key).__qualname__} {key!r}: "
                "call wait_for(predicate, *keys), with each key as an argument of its own"
            )
    if timeout is None and _is_timeout(keys):
        number = next(key for key in reversed(keys) if isinstance(key, (int, float)))
        raise TypeError(f"a timeout is passed by name, as timeout={number!r}, or else the number is a key")


def _is_timeout(keys: tuple[Hashable, ...]) -> bool:
    """Return whether a key looks like a timeout: it is a `float`, or an `int` behind keys that are not integers."""
    *others, last = keys
    is_int = isinstance(last, int) and not isinstance(last, bool)
    return any(isinstance(key, float) for key in keys) or (is_int and any(not isinstance(key, int) for key in others))
