"""The short form of an operation: a predicate instead of a class."""

from collections.abc import Callable, Hashable
from inspect import iscoroutine
from typing import Generic, TypeVar

from purgatory._core.arguments import check_callback
from purgatory._core.operation import DelayedOperation

__all__ = ["PredicateWait", "check_predicate"]

T = TypeVar("T")


class PredicateWait(DelayedOperation[T], Generic[T]):
    """Waits until a predicate is true. Yields its last value."""

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
    if timeout is None and isinstance(keys[-1], float):
        raise TypeError(f"the timeout is given by name, or else it is a key: call timeout={keys[-1]!r}")
