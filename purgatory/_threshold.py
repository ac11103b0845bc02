"""Waiting until a value that only grows has passed a threshold: an index, an offset, a revision.

This is the blocking query of Consul and etcd ("answer when the index has passed n"). Kafka's Raft layer waits for its
high watermark with a `ThresholdPurgatory` too, and the names and their meaning come from there.

The waits are operations in a purgatory, watched on their threshold. In addition, a heap contains each threshold once,
however many waits it has. So an advance looks at the lowest thresholds, up to the first that it does not pass, and at
no operation that waits for a higher one.

A threshold whose waits have all expired or been cancelled stays in the heap until it is passed or swept out. When there
are too many of these, the heap becomes the *old* heap and a new one begins. Each further threshold then removes a few
from the end of the old heap, which does not change its order. Thresholds that still have a wait move into the new one.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final, Generic, Self, TypeVar

from purgatory._core.operation import DelayedOperation
from purgatory._core.purgatory import DelayedOperationPurgatory
from purgatory._loop.closing import Closing
from purgatory.lowlevel import ExitRequests, Mailbox, SlicedWork, loop_for_threads

Number = TypeVar("Number", bound=float)

_SWEPT: Final = 4
"""Old thresholds that each new one sweeps, so that the old heap is gone before the new one can be as long."""

_SPARED: Final = 1000
"""Thresholds without a wait that are not worth a sweep."""


class DelayedReach(DelayedOperation[Number]):
    """Waits until the value exceeds the threshold. The result is the value."""

    __slots__ = ("__weakref__", "of", "threshold")

    def __init__(self, of: "ThresholdPurgatory[Number]", threshold: Number, timeout: float | None) -> None:
        super().__init__(timeout)
        self.of: ThresholdPurgatory[Number] = of
        self.threshold: Number = threshold

    def try_complete(self) -> bool:
        return self.of._value > self.threshold and self.force_complete()

    def on_complete(self) -> Number:
        return self.of._value


class ThresholdPurgatory(Closing, Generic[Number]):
    """A value that only grows, and the waits until it exceeds a threshold or a deadline comes.

        index = ThresholdPurgatory(0)
        value = await index.reach(41, timeout=30.0)   # 42 or more, or the value at the deadline
        index.advance(42)                             # elsewhere

    It belongs to one event loop and its thread, like every purgatory. Use it as an async context manager, or call
    `aclose` at the end.
    """

    __slots__ = (
        "__weakref__",
        "_advance_later",
        "_heap",
        "_mailbox",
        "_old",
        "_thresholds",
        "_value",
        "purgatory",
    )

    def __init__(self, value: Number, purgatory: DelayedOperationPurgatory | None = None) -> None:
        """Make a value without waits.

        Args:
            value: The value at first.
            purgatory: The purgatory that holds the waits. It must not contain other operations. By default, a new one.

        Raises:
            ValueError: `value` is NaN.
            TypeError: `value` is not a number, or `purgatory` is not a `DelayedOperationPurgatory`.
        """
        _check_number("value", value)
        if purgatory is None:
            purgatory = DelayedOperationPurgatory("threshold")
        if not isinstance(purgatory, DelayedOperationPurgatory):
            raise TypeError(f"purgatory must be a DelayedOperationPurgatory, not {purgatory!r}")
        self._value = value
        self.purgatory: DelayedOperationPurgatory = purgatory
        """The purgatory that holds the waits. Use it for statistics, metrics and `cancel_for_key(threshold)`."""
        self._thresholds: set[Number] = set()
        """The thresholds in the two heaps."""
        self._heap: list[Number] = []
        self._old: list[Number] = []
        self._advance_later = SlicedWork(purgatory.timer, self._advance_slice)
        self._mailbox: Mailbox[Number] = Mailbox(self._take_mail)
        """Values from `advance_threadsafe`."""

    def _purgatory_describe(self) -> str:
        return f"{self.purgatory.name!r} value={self.value!r} waiting={self.num_waiting}"

    async def __aenter__(self) -> Self:
        await self.purgatory.__aenter__()
        self._take_mail()
        return self

    @property
    def value(self) -> Number:
        """The value now, which is the highest that was ever set."""
        return self._value

    @property
    def num_waiting(self) -> int:
        """The exact number of waits."""
        return self.purgatory.num_delayed

    def reach(self, threshold: Number, timeout: float | None) -> DelayedOperation[Number]:
        """Wait until the value exceeds `threshold`. The wait begins with this call, whether you await it or not.

        Args:
            threshold: A number. If the value exceeds it already, the operation is done at once.
            timeout: Seconds to wait at most. `None` means no deadline.

        Returns:
            An operation whose result is the value. At a deadline or a close, that is not above the threshold.

        Raises:
            ValueError: `threshold` is NaN, or `timeout` is negative, NaN or infinite.
            TypeError: `threshold` or `timeout` is not a number.
            PurgatoryClosed: The purgatory accepts no more waits.
            PurgatoryFull: `max_pending` waits are pending.
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
        if self._mailbox:  # from a time when the loop was not known yet
            self._take_mail()
        return operation

    def advance(self, value: Number) -> int:
        """Raise the value, and complete the waits that it passes, from the lowest threshold up. Return how many.

        A lower value than the present one changes nothing.

        Raises:
            ValueError: `value` is NaN.
            TypeError: `value` is not a number.
            PurgatoryMisuse: The purgatory belongs to another event loop or thread.
        """
        self._grow_to(value, "advance")
        completed = 0
        exits = ExitRequests()
        while heap := self._passed():
            threshold = heap[0]
            with exits:
                completed += self.purgatory.check_and_complete(threshold)
            self._forget(heap, threshold)
        exits.raise_first()
        return completed

    def advance_soon(self, value: Number) -> None:
        """Raise the value as `advance` does, but complete the waits in slices, from the next iteration on."""
        self._grow_to(value, "advance_soon")
        if self._passed():
            self._advance_later.schedule()

    def advance_threadsafe(self, value: Number) -> None:
        """Do `advance_soon` from another thread or a signal handler. However many calls come, the loop wakes up once.

        The value grows on the next iteration of the loop, or at the first `reach` if there is no loop yet. After a
        close, the call does nothing.

        Raises:
            ValueError: `value` is NaN.
            TypeError: `value` is not a number.
            PurgatoryMisuse: The purgatory runs on a clock that is not an event loop.
            RuntimeError: The event loop is closed, and the purgatory is not.
        """
        _check_number("value", value)
        loop_for_threads(self.purgatory)
        if self.purgatory.closed:
            return
        self._mailbox.add(value)
        values = self._mailbox.look()
        for lower in values:
            if lower < max(values):  # it adds nothing any more, so the mailbox doesn't grow with the calls
                self._mailbox.discard(lower)
        # Look after the append: so a reach that makes the loop known finds the value, or this call finds the loop.
        loop = loop_for_threads(self.purgatory)
        if loop is not None:
            self._mailbox.wake(loop)

    def complete_all(self) -> int:
        """Complete all waits with the present value. Return how many completed."""
        return self.purgatory.complete_all()

    def fail_all(self, exception: Exception) -> int:
        """Fail all waits with `exception`, as `DelayedOperationPurgatory.fail_all`. Return how many failed."""
        return self.purgatory.fail_all(exception)

    async def aclose(self) -> None:
        """Refuse new waits and complete the pending ones, in slices. A second call does nothing."""
        await self.purgatory.aclose()
        self.close()

    def close(self) -> None:
        """Do the same as `aclose`, but in one go."""
        self.purgatory.close()
        self._thresholds.clear()
        self._heap.clear()
        self._old.clear()

    def _grow_to(self, value: Number, call: str) -> None:
        _check_number("value", value)
        self.purgatory.check_thread(f"{call}(value)", "advance_threadsafe()")
        if value > self._value:
            self._value = value

    def _take_mail(self) -> None:
        """Take the values of `advance_threadsafe`."""
        self.advance_soon(max([self._value, *self._mailbox.take()]))

    def _passed(self) -> list[Number]:
        """Return the heap with the lowest threshold, or an empty list if the value does not exceed that."""
        heap = self._heap
        if self._old and (not heap or self._old[0] < heap[0]):
            heap = self._old
        return heap if heap and heap[0] < self._value else []

    def _forget(self, heap: list[Number], threshold: Number) -> None:
        if heap and heap[0] == threshold:  # unless a callback has advanced the value meanwhile
            heappop(heap)
            self._thresholds.discard(threshold)

    def _advance_slice(self) -> Iterator[int]:
        while heap := self._passed():
            threshold = heap[0]
            self.purgatory.check_and_complete_soon(threshold)
            self._forget(heap, threshold)
            yield 1

    def _sweep(self) -> None:
        if not self._old:
            self._old, self._heap = self._heap, []
        for _ in range(_SWEPT):
            if not self._old:
                break
            threshold = self._old.pop()
            if self.purgatory.is_watched(threshold):
                heappush(self._heap, threshold)
            else:
                self._thresholds.discard(threshold)


def _check_number(name: str, number: float) -> None:
    if not isinstance(number, (int, float)):
        raise TypeError(f"{name} must be an int or a float, not {number!r}")
    if number != number:
        raise ValueError(f"{name} must be a number, not NaN")
