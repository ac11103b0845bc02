"""Waiting until a value that only grows has passed a threshold: an index, an offset, a revision.

This is the blocking query of Consul and etcd ("answer when the index has passed n"), and what Kafka's Raft layer waits
with for its high watermark; names and meaning are those of its `ThresholdPurgatory`.

The waits are operations in a purgatory, watched on their threshold. Beside it, a heap has each threshold once, however
many wait for it. So an advance looks at the lowest thresholds, up to the first that it does not pass, and at no
operation that waits for a higher one.

A threshold whose waits have all expired or been cancelled stays in the heap until it is passed or swept out. When
there are too many of these, the heap is put aside as the *old* one and a new one is begun; each further threshold then
takes a few from the end of the old one, where taking does not disturb the order of a heap, and those that are still
waited for go on into the new one. So no iteration of the loop looks at all of them.
"""

from copy import copy
from heapq import heappop, heappush
from types import TracebackType
from typing import Final, Generic, NoReturn, TypeVar, cast

from purgatory._checks import refuse_copy
from purgatory._slices import call_next
from purgatory.errors import PurgatoryError
from purgatory.operation import DelayedOperation
from purgatory.purgatory import DelayedOperationPurgatory

__all__ = ["ThresholdPurgatory"]

Number = TypeVar("Number", bound=float)

_SWEPT: Final = 4
"""How many old thresholds each new one sweeps: the old heap is gone before the new one can be as long."""

_SPARED: Final = 1000
"""So many thresholds without a wait are not worth a sweep."""


class DelayedReach(DelayedOperation[Number]):
    """Waits until the value exceeds the threshold. Yields the value."""

    __slots__ = ("__weakref__", "failure", "of", "threshold")

    def __init__(self, of: "ThresholdPurgatory[Number]", threshold: Number, timeout: float | None) -> None:
        super().__init__(timeout)
        self.of = of
        self.threshold = threshold
        self.failure: Exception | None = None

    def try_complete(self) -> bool:
        return self.of._value > self.threshold and self.force_complete()

    def on_complete(self) -> Number:
        if self.failure is None:
            return self.of._value
        try:
            raise self.failure
        except Exception as failure:
            failure.__context__ = None  # what the caller of fail_all is handling is not ours
            raise
        finally:
            self.failure = None  # it holds this frame, which holds the operation

    def fail(self, exception: Exception) -> bool:
        """Raise another one like `exception`. Returns whether it was this call that completed the operation."""
        self.failure = _another(exception)
        return self.force_complete()


class ThresholdPurgatory(Generic[Number]):
    """A value that only grows, and the waits until it exceeds a threshold or a deadline comes.

        index = ThresholdPurgatory(0)
        value = await index.reach(41, timeout=30.0)   # 42 or more; or, when the time is over, what it is then
        index.advance(42)                             # elsewhere

    Belongs to one event loop and its thread, as every purgatory. Use it as an async context manager, or call `aclose`.
    """

    __slots__ = ("__weakref__", "_advancing", "_heap", "_old", "_thresholds", "_value", "purgatory")

    def __init__(self, value: Number, purgatory: DelayedOperationPurgatory | None = None) -> None:
        """Start at `value`. `purgatory` is what holds the waits, and nothing else; one by itself if none is given.

        Raises `TypeError` or `ValueError` if `value` is not a number, `TypeError` if `purgatory` is not one.
        """
        _check_number("value", value)
        if purgatory is None:
            purgatory = DelayedOperationPurgatory("threshold")
        if not isinstance(purgatory, DelayedOperationPurgatory):
            raise TypeError(f"a DelayedOperationPurgatory is needed, not {purgatory!r}")
        self._value = value
        self.purgatory = purgatory
        """The purgatory that holds the waits: for its statistics, metrics and listeners, and
        `cancel_for_key(threshold)`.
        """
        self._thresholds: set[Number] = set()
        """Those in the two heaps."""
        self._heap: list[Number] = []
        self._old: list[Number] = []
        self._advancing = False
        """Whether an advance in slices is under way."""

    def __repr__(self) -> str:
        return f"<{type(self).__qualname__} {self.purgatory.name!r} value={self.value!r} waiting={self.num_waiting}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        refuse_copy(self)

    async def __aenter__(self) -> "ThresholdPurgatory[Number]":
        await self.purgatory.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def value(self) -> Number:
        """The value now: the highest that it has been given."""
        return self._value

    @property
    def num_waiting(self) -> int:
        """How many wait, exactly."""
        return self.purgatory.num_delayed

    def reach(self, threshold: Number, timeout: float | None) -> DelayedOperation[Number]:
        """Wait until the value exceeds `threshold`, for `timeout` seconds at the most; `None` is for ever.

        Waits from this call on, whether the operation that it returns is awaited or not. What it yields is the value at
        that time; if the deadline has come first, or the purgatory is closed, that is not above the threshold. Raises
        `ValueError` or `TypeError` for what is no threshold or no timeout, `PurgatoryClosed` and `PurgatoryFull`.
        """
        _check_number("threshold", threshold)
        operation = self.purgatory.try_complete_else_watch(DelayedReach(self, threshold, timeout), (threshold,))
        if threshold not in self._thresholds and not operation.done():
            self._thresholds.add(threshold)
            heappush(self._heap, threshold)
            if self._value > threshold:  # advanced meanwhile
                self.purgatory.check_and_complete(threshold)
            if self._old or len(self._heap) > 2 * self.num_waiting + _SPARED:
                self._sweep()
        return operation

    def advance(self, value: Number) -> int:
        """The value is `value` now, if it was less. Returns how many waits that completed, lowest thresholds first.

        Raises `ValueError` or `TypeError` if it is not a number.
        """
        self._grow_to(value, "advance")
        completed = 0
        leaving: BaseException | None = None
        while heap := self._passed():
            threshold = heap[0]
            try:
                completed += self.purgatory.check_and_complete(threshold)
            except (SystemExit, KeyboardInterrupt) as exception:
                leaving = leaving or exception
            self._forget(heap, threshold)
        if leaving is not None:
            raise leaving
        return completed

    def advance_soon(self, value: Number) -> None:
        """As `advance`, but the waits complete from the next iteration of the loop on, in slices if there are
        many."""
        self._grow_to(value, "advance_soon")
        if not self._advancing and self._passed():
            self._advance_next_iteration()

    def complete_all(self) -> int:
        """Complete all waits with the value as it is. Returns how many that were."""
        return self.purgatory.complete_all()

    def fail_all(self, exception: Exception) -> int:
        """Let all waits raise `exception`, lowest thresholds first. Returns how many that were.

        Each raises one of its own like it: one that many tasks raise would collect the tracebacks of all. If it is of a
        kind that cannot be made again, that is a `PurgatoryError` with `exception` as its cause. Raises `TypeError` if
        it is no `Exception`, or is a `StopIteration`, which no coroutine may raise.
        """
        self.purgatory.check_thread("purgatory.fail_all(exception)")
        ordinary = isinstance(exception, Exception)
        if not ordinary or isinstance(exception, StopIteration):
            raise TypeError(f"waits can raise an Exception other than StopIteration, not {exception!r}")
        failed = 0
        leaving: BaseException | None = None
        for threshold in sorted(self._thresholds):
            for operation in self.purgatory.watching(threshold):
                try:
                    failed += cast("DelayedReach[Number]", operation).fail(exception)
                except (SystemExit, KeyboardInterrupt) as request:
                    leaving = leaving or request
        if leaving is not None:
            raise leaving
        return failed

    async def aclose(self) -> None:
        """Take no more waits and complete all there are, in slices. Harmless when repeated."""
        await self.purgatory.aclose()
        self.close()

    def close(self) -> None:
        """As `aclose`, in one go."""
        self.purgatory.close()
        self._thresholds.clear()
        self._heap.clear()
        self._old.clear()

    def _grow_to(self, value: Number, call: str) -> None:
        _check_number("value", value)
        self.purgatory.check_thread(f"purgatory.{call}(value)")
        if value > self._value:
            self._value = value

    def _passed(self) -> list[Number]:
        """The heap with the lowest threshold, if the value exceeds that; else an empty one."""
        heap = self._heap
        if self._old and (not heap or self._old[0] < heap[0]):
            heap = self._old
        return heap if heap and heap[0] < self._value else []

    def _forget(self, heap: list[Number], threshold: Number) -> None:
        if heap and heap[0] == threshold:  # not if a callback has advanced it meanwhile
            heappop(heap)
            self._thresholds.discard(threshold)

    def _advance_next_iteration(self) -> None:
        self._advancing = True
        try:
            call_next(self.purgatory.timer.clock, self._advance_slice)
        except BaseException:
            self._advancing = False
            raise

    def _advance_slice(self) -> None:
        self._advancing = False
        part = self.purgatory.timer.new_slice()
        while heap := self._passed():
            threshold = heap[0]
            self.purgatory.check_and_complete_soon(threshold)
            self._forget(heap, threshold)
            if part.is_over():
                self._advance_next_iteration()
                break

    def _sweep(self) -> None:
        if not self._old:
            self._old, self._heap = self._heap, []
        for _ in range(min(_SWEPT, len(self._old))):
            threshold = self._old.pop()
            if self.purgatory.is_watched(threshold):
                heappush(self._heap, threshold)
                if self._value > threshold:  # advanced meanwhile
                    self.purgatory.check_and_complete(threshold)
            else:
                self._thresholds.discard(threshold)


def _another(exception: Exception) -> Exception:
    """One like `exception`, without its traceback."""
    for make in (_without_init, copy):  # many change their arguments in __init__; some get all they have there
        try:
            made = make(exception)
            faithful = type(made) is type(exception) and made.args == exception.args and str(made) == str(exception)
        except Exception:
            continue
        if faithful:
            made.__cause__ = exception.__cause__
            if hasattr(made, "__notes__"):
                made.__notes__ = list(made.__notes__)
            return made
    made = PurgatoryError(f"{type(exception).__qualname__}, which cannot be made again for each wait")
    made.__cause__ = exception
    return made


def _without_init(exception: Exception) -> Exception:
    made = type(exception).__new__(type(exception), *exception.args)
    made.__dict__.update(exception.__dict__)
    return made


def _check_number(name: str, number: float) -> None:
    if not isinstance(number, (int, float)):
        raise TypeError(f"{name} must be an int or a float, not {number!r}")
    if number != number:
        raise ValueError(f"{name} must be a number, not NaN")
