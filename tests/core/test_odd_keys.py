"""Keys whose `__hash__` and `__eq__` call the purgatory in the middle of a call."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from purgatory import DelayedOperationPurgatory, PurgatoryError, VirtualClock
from tests.support.cores import looks_inside
from tests.support.injection import each_step
from tests.support.invariants import check_purgatory
from tests.support.operations import FaultLog, Flag, Late


class Key:
    """A key that equals all of its class, and calls `then` when it is hashed for the nth time."""

    def __init__(self, nth: int, then: Callable[[], object]) -> None:
        self.left = nth
        self.then = then

    def __hash__(self) -> int:
        self.left -= 1
        if self.left == 0:
            self.then()
        return 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key)


class Incomparable:
    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise ValueError("not comparable")


@pytest.mark.parametrize("ready", [False, True])
def test_keys_that_cannot_be_compared_are_refused_before_anything_is_registered(
    purgatory: DelayedOperationPurgatory, ready: bool
) -> None:
    operation = Flag(1.0, ready=ready)
    with pytest.raises(ValueError, match="not comparable"):
        purgatory.try_complete_else_watch(operation, [Incomparable(), Incomparable()])
    assert not operation.done()
    assert (purgatory.watched, purgatory.statistics().estimated_total) == (0, 0)
    assert purgatory.try_complete_else_watch(operation, ["key"]) is operation


def test_a_key_given_twice_is_watched_once(purgatory: DelayedOperationPurgatory) -> None:
    purgatory.try_complete_else_watch(Flag(), ["a", "b", "a"])
    assert purgatory.watched == 2


def test_an_operation_that_its_own_keys_hand_over_is_watched_once(purgatory: DelayedOperationPurgatory) -> None:
    operation = Flag()

    def keys() -> Iterator[str]:
        purgatory.try_complete_else_watch(operation, ["first"])
        yield "second"

    with pytest.raises(PurgatoryError, match="has been used"):
        purgatory.try_complete_else_watch(operation, keys())
    assert (purgatory.num_delayed, purgatory.watched) == (1, 1)
    assert operation.force_complete()
    assert purgatory.num_delayed == 0


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_key_that_watches_an_operation_on_itself_loses_none(purgatory: DelayedOperationPurgatory, nth: int) -> None:
    inner, outer = Flag(), Flag()
    key = Key(nth, lambda: purgatory.try_complete_else_watch(inner, [Key(0, int)]))
    purgatory.try_complete_else_watch(outer, [key])
    if nth == 3:  # hashed when it comes, when its list is looked up, and once more if there is none
        assert purgatory.num_delayed == 2
    check_purgatory(purgatory)
    inner.ready = outer.ready = True
    assert purgatory.check_and_complete(Key(0, int)) == 2
    assert inner.done()
    assert outer.done()


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_key_that_closes_the_purgatory_leaves_no_operation_pending(
    purgatory: DelayedOperationPurgatory, clock: VirtualClock, nth: int
) -> None:
    operation = Flag()
    key = Key(nth, purgatory.close)
    try:
        purgatory.try_complete_else_watch(operation, [key])
    except PurgatoryError:
        assert not operation.done(), "refused: nothing has happened"
    else:
        assert operation.done()
    assert (purgatory.num_delayed, purgatory.watched) == (0, 0)
    check_purgatory(purgatory)


def test_a_key_that_closes_the_purgatory_and_raises_leaves_no_entry(purgatory: DelayedOperationPurgatory) -> None:
    class Closing:
        hashed = 0

        def __hash__(self) -> int:
            self.hashed += 1
            if self.hashed == 2:
                purgatory.close()
                raise LookupError
            return 1

    with pytest.raises(LookupError):
        purgatory.try_complete_else_watch(Flag(1.0), ["key", Closing()])
    assert (purgatory.watched, purgatory.statistics().estimated_total) == (0, 0)


def test_an_operation_that_comes_while_two_lists_are_merged_is_found(purgatory: DelayedOperationPurgatory) -> None:
    class Key:
        """A key that is watched anew while its list is dropped, in the old list and then in another one."""

        def __init__(self) -> None:
            self.calls: list[Callable[[], object]] = []

        def __hash__(self) -> int:
            if self.calls:
                self.calls.pop(0)()
            return 1

    for injector in each_step():
        key = Key()
        watching: list[Flag] = []

        def watch(key: Key = key, watching: list[Flag] = watching) -> None:
            calls, key.calls = key.calls, []
            watching.append(purgatory.try_complete_else_watch(Flag(), [key]))
            key.calls = calls

        def drop(key: Key = key, watching: list[Flag] = watching) -> None:
            calls, key.calls = key.calls, []
            if len(watching) == 2:
                watching.pop().cancel()
                purgatory.check_and_complete(key)
            key.calls = calls

        purgatory.try_complete_else_watch(Flag(), [key]).cancel()
        key.calls = [int, watch, watch]
        injector.inject = drop
        with injector:
            purgatory.check_and_complete(key)
        key.calls = []
        assert purgatory.watching(key) == watching
        for operation in watching:
            operation.ready = True
        assert purgatory.check_and_complete(key) == len(watching) > 0
        check_purgatory(purgatory)


class Revived:
    """A key that is watched anew while its list is being dropped.

    The operation becomes ready, and its key is checked, while the list is not found.
    """

    def __init__(self, purgatory: DelayedOperationPurgatory, *, cancel: bool = False) -> None:
        self.purgatory = purgatory
        self.cancel = cancel
        self.operation = Flag(60.0)
        self.key = Key(0, int)

    def arm(self) -> None:
        """Watch the key anew at its next `__hash__`, which is in the drop of its list."""
        self._at_next_hash(self._watch)

    def _at_next_hash(self, call: Callable[[], object]) -> None:
        self.key.left, self.key.then = 1, call

    def _watch(self) -> None:
        if not self.operation.ready:
            self.purgatory.try_complete_else_watch(self.operation, [Key(0, int)])
            self._at_next_hash(self._make_true)

    def _make_true(self) -> None:
        self.operation.ready = True
        if self.cancel:
            self.operation.cancel()
        self.purgatory.check_and_complete(Key(0, int))


@pytest.mark.parametrize("way", ["check", "check with a limit", "check soon"])
def test_a_key_that_is_watched_anew_while_its_list_is_dropped_loses_no_wake_up(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, way: str
) -> None:
    revived = Revived(purgatory)
    first = purgatory.try_complete_else_watch(Flag(then=revived.arm), [revived.key])
    first.ready = True
    match way:
        case "check":
            purgatory.check_and_complete(Key(0, int))
        case "check with a limit":
            purgatory.check_and_complete(Key(0, int), limit=1)
        case _:
            purgatory.check_and_complete_soon(Key(0, int))
            clock.advance(0)
    assert first.done()
    assert revived.operation.ready
    assert revived.operation.done()
    purgatory.close()
    check_purgatory(purgatory)


def test_operation_cancelled_while_watcher_list_is_dropped_is_not_tried_again(
    purgatory: DelayedOperationPurgatory, clock: FaultLog
) -> None:
    revived = Revived(purgatory, cancel=True)
    purgatory.try_complete_else_watch(Flag(then=revived.arm), [revived.key]).ready = True
    assert purgatory.check_and_complete(Key(0, int)) == 1
    assert revived.operation.cancelled()
    assert clock.faults == []
    purgatory.check_and_complete(Key(0, int))
    check_purgatory(purgatory)


@looks_inside
def test_a_list_that_is_dropped_at_any_step_of_its_making_loses_no_wake_up(clock: FaultLog) -> None:
    # The operation is completed by a finalizer, and its list compacted, while it is being handed over.
    made_ready = 0
    for injector in each_step():
        purgatory = DelayedOperationPurgatory(clock=clock)
        revived = Revived(purgatory)
        operation = Flag()

        def complete(
            purgatory: DelayedOperationPurgatory = purgatory, revived: Revived = revived, operation: Flag = operation
        ) -> None:
            operation.force_complete()
            purgatory.check_and_complete(Key(0, int))
            revived.arm()

        injector.inject = complete
        with suppress(PurgatoryError), injector:
            purgatory.try_complete_else_watch(operation, (revived.key,))
        made_ready += revived.operation.ready
        assert revived.operation.done() == revived.operation.ready
        purgatory.close()
        check_purgatory(purgatory)
    assert made_ready


@pytest.mark.parametrize("nth", [2, 3])
def test_a_key_that_completes_its_operation_and_is_not_found_leaves_the_counts_right(
    purgatory: DelayedOperationPurgatory, nth: int
) -> None:
    operation = Flag(60.0)

    def complete() -> None:
        operation.force_complete()
        raise LookupError

    with pytest.raises(LookupError):
        purgatory.try_complete_else_watch(operation, ["key", Key(nth, complete)])
    assert operation.result() == "result of flag"
    assert (purgatory.num_delayed, purgatory.watched, purgatory.statistics().satisfied) == (0, 1, 1)
    check_purgatory(purgatory)


def test_a_reported_fault_keeps_no_other_operation_alive(purgatory: DelayedOperationPurgatory, clock: FaultLog) -> None:
    late = purgatory.try_complete_else_watch(Late(), ["key"])
    unrelated = purgatory.try_complete_else_watch(Flag(), ["key"])
    late.ready = unrelated.ready = True
    gc.disable()
    try:
        purgatory.check_and_complete("key")
        (exception,) = clock.exceptions
        assert isinstance(exception, LookupError)
        gone = weakref.ref(unrelated)
        del unrelated
        assert gone() is None, "kept by the traceback of another's fault"
    finally:
        gc.enable()
