"""Times, keys and deadlines for all worlds."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVarTuple

from purgatory import Handle
from tests.support.injection import is_step, of_a_key
from tests.support.operations import FaultLog

Ts = TypeVarTuple("Ts")

START: Final = 1000.25
"""The time at which a world begins: not a multiple of all ticks."""
TICK: Final = 0.001
FAR: Final = 100_000.0
"""Seconds after which all deadlines of a world have passed."""


class Clock(FaultLog):
    """A clock whose methods are callbacks too."""

    @is_step
    def time(self) -> float:
        return super().time()

    @is_step
    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts) -> Handle:
        return super().call_at(when, callback, *args)

    @is_step
    def call_exception_handler(self, context: dict[str, Any]) -> None:
        super().call_exception_handler(context)


@is_step
def each(keys: tuple[Hashable, ...]) -> Iterator[Hashable]:
    """Yield the keys: their iteration is a callback."""
    yield from keys


class OddKey:
    """A key whose methods are written in Python."""

    def __init__(self, name: str) -> None:
        self.name = name

    @of_a_key
    def __hash__(self) -> int:
        return hash(self.name) & 3

    @of_a_key
    def __eq__(self, other: object) -> bool:
        return isinstance(other, OddKey) and other.name == self.name

    def __repr__(self) -> str:
        return self.name


class Moves:
    """The possible deadlines of an operation or task: one, or, when moves have overlapped, one of each."""

    def __init__(self) -> None:
        self.possible: list[float | None] = []
        self._overlapping: list[float | None] = []
        self._under_way = 0

    @contextmanager
    def to(self, deadline: float | None) -> Iterator[None]:
        """Surround a call that moves the deadline there. A call that raises has not moved it."""
        if not self._under_way:
            self._overlapping = []
        self._overlapping.append(deadline)
        self.possible.append(deadline)
        self._under_way += 1
        try:
            yield
        except BaseException:
            self._overlapping.remove(deadline)
            self.possible.remove(deadline)
            raise
        finally:
            self._under_way -= 1
            if not self._under_way and self._overlapping:
                self.possible = list(self._overlapping)

    @property
    def earliest(self) -> float:
        return min((deadline for deadline in self.possible if deadline is not None), default=float("inf"))

    @property
    def never(self) -> bool:
        """Whether the deadline may never come."""
        return None in self.possible or not self.possible
