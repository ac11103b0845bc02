"""Promise 3: if the condition became true and the key was checked after it, the operation completes."""

import pytest

from purgatory import DelayedOperationPurgatory, VirtualClock
from tests.support.operations import Flag


class TrueOnTry(Flag):
    """Its condition becomes true during the n-th try, after it was read."""

    def __init__(self, nth: int, purgatory: DelayedOperationPurgatory) -> None:
        super().__init__()
        self.left = nth
        self.purgatory = purgatory

    def try_complete(self) -> bool:
        completed = super().try_complete()
        self.left -= 1
        if self.left == 0 and not completed:
            self.ready = True
            self.purgatory.check_and_complete("key")
        return completed


@pytest.mark.parametrize("nth", [1, 2])
def test_a_condition_that_becomes_true_during_a_try_of_the_hand_over_is_found(
    purgatory: DelayedOperationPurgatory, nth: int
) -> None:
    # In the first try the check finds no operation to try: the second one is there for this.
    operation = purgatory.try_complete_else_watch(TrueOnTry(nth, purgatory), ["key"])
    assert operation.done()
    assert (purgatory.num_delayed, len(purgatory.timer)) == (0, 0)


def test_a_check_of_any_of_its_keys_completes_an_operation(purgatory: DelayedOperationPurgatory) -> None:
    for n in range(50):
        operation = purgatory.try_complete_else_watch(Flag(), range(50))
        operation.ready = True
        assert purgatory.check_and_complete(n) == 1
        assert operation.done()


def test_a_check_soon_during_its_pass_makes_another_pass(
    purgatory: DelayedOperationPurgatory, clock: VirtualClock
) -> None:
    # 3000 watchers take three iterations. A condition that becomes true behind the pass is found by the next one.
    operations = [purgatory.try_complete_else_watch(Flag(), ["key"]) for _ in range(3000)]
    other = purgatory.try_complete_else_watch(Flag(), ["other"])

    def meanwhile() -> None:
        operations[0].ready = other.ready = True
        purgatory.check_and_complete_soon("key")
        purgatory.check_and_complete_soon("other")

    purgatory.check_and_complete_soon("key")
    clock.call_at(0.0, meanwhile)
    clock.advance(0)
    assert operations[0].done()
    assert other.done()
    assert purgatory.num_delayed == 2999


def test_a_purge_behind_a_check_that_is_suspended_moves_no_operation_past_its_end(clock: VirtualClock) -> None:
    purgatory = DelayedOperationPurgatory(clock=clock, purge_interval=10)

    def watch(key: str, count: int) -> list[Flag]:
        return [purgatory.try_complete_else_watch(Flag(), [key]) for _ in range(count)]

    class Growing(Flag):
        def try_complete(self) -> bool:
            if self.ready:  # more entries come, of which one is dead
                watch("before", 700)
                watch("key", 100)[-1].cancel()
            return super().try_complete()

    watch("before", 400)
    dead = watch("purged", 4000)
    first = purgatory.try_complete_else_watch(Growing(), ["key"])
    last = watch("key", 1000)[-1]
    purgatory.check_and_complete_soon("before")
    purgatory.check_and_complete_soon("key")
    for operation in dead:
        operation.cancel()  # which schedules a purge behind the check
    first.ready = last.ready = True
    clock.advance(0)
    assert last.done()
