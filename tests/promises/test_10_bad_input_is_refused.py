"""Promise 10: bad input is refused before anything is registered, with an error that names the value."""

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from purgatory import (
    DelayedOperation,
    DelayedOperationPurgatory,
    IdleTracker,
    PurgatoryFull,
    PurgatoryMisuse,
    ThresholdPurgatory,
    VirtualClock,
    WheelTimer,
)
from tests.support.operations import FaultLog, Flag, Note


class Incomparable:
    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("not comparable")


class Raising:
    def __iter__(self) -> Iterator[str]:
        raise TypeError("an error of the iterable's own")


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ("topic-1", TypeError, "keys must be an iterable of keys, not the str 'topic-1'"),
        (b"topic-1", TypeError, "not the bytes"),
        (7, TypeError, r"keys must be an iterable of keys, not 7: call try_complete_else_watch\(operation, \[key\]\)"),
        (None, TypeError, "keys must be an iterable of keys, not None"),
        (Flag(), TypeError, "keys must be an iterable of keys, not <Flag new timeout=None>: call"),
        (["key", []], TypeError, "a key must be hashable: .*unhashable"),
        (Raising(), TypeError, "an error of the iterable's own"),
        ([Incomparable(), Incomparable()], ZeroDivisionError, "not comparable"),
    ],
)
@pytest.mark.parametrize("ready", [False, True])
def test_bad_keys_are_refused(
    purgatory: DelayedOperationPurgatory, keys: Any, error: type[Exception], message: str, ready: bool
) -> None:
    operation = Flag(1.0, ready=ready)
    with pytest.raises(error, match=message):
        purgatory.try_complete_else_watch(operation, keys)
    assert repr(operation) == "<Flag new timeout=1.0>", "not even tried"
    assert (purgatory.num_delayed, purgatory.watched, len(purgatory.timer)) == (0, 0, 0)
    assert purgatory.try_complete_else_watch(operation, ["key"]) is operation


@pytest.mark.parametrize(
    ("pending", "error", "message"),
    [
        (0, ValueError, "Releasing arriving> needs a key or a timeout, because nothing else would end it: call try_"),
        (1, PurgatoryFull, "already holds max_pending=1 operations"),
    ],
)
def test_an_operation_that_would_wait_without_a_key_and_a_deadline_is_refused_and_cancelled(
    clock: VirtualClock, pending: int, error: type[Exception], message: str
) -> None:
    class Releasing(Flag):
        def on_done(self) -> None:
            self.calls.append("done")

    purgatory = DelayedOperationPurgatory(clock=clock, max_pending=1)
    for _ in range(pending):
        purgatory.try_complete_else_watch(Flag(), ["key"])
    operation = Releasing()
    with pytest.raises(error, match=message):
        purgatory.try_complete_else_watch(operation, iter(()))
    assert (operation.tries, operation.outcome, operation.calls) == (1, "cancelled", ["done"])
    assert (purgatory.statistics().cancelled, purgatory.num_delayed, len(purgatory.timer)) == (1, pending, 0)
    purgatory.try_complete_else_watch(Flag(ready=True), [])


def test_a_wait_for_without_a_key_is_refused(purgatory: DelayedOperationPurgatory) -> None:
    with pytest.raises(ValueError, match="wait_for needs a key, because nothing polls"):
        purgatory.wait_for(lambda: True, timeout=1.0)
    assert purgatory.statistics().completed_at_once == 0


def test_a_close_of_a_purgatory_s_timer_is_refused(purgatory: DelayedOperationPurgatory) -> None:
    operation = purgatory.try_complete_else_watch(Flag(1.0), ["key"])
    with pytest.raises(PurgatoryMisuse, match=r"runs the deadlines of a purgatory: call purgatory.close\(\) instead"):
        purgatory.timer.close()
    assert (operation.outcome, len(purgatory.timer)) == (None, 1)
    purgatory.close()
    assert operation.outcome == "closed"


SECONDS: dict[str, Callable[[DelayedOperationPurgatory, Any], object]] = {
    "timeout": lambda purgatory, seconds: Flag(seconds),
    "reschedule": lambda purgatory, seconds: purgatory.watching("key")[0].reschedule(seconds),
    "tick": lambda purgatory, seconds: WheelTimer(tick=seconds),
    "idle": lambda purgatory, seconds: IdleTracker(seconds),
    "reach": lambda purgatory, seconds: ThresholdPurgatory(0, purgatory).reach(1, seconds),
    "touch": lambda purgatory, seconds: IdleTracker[str](1.0, clock=VirtualClock()).touch("key", seconds),
    "add": lambda purgatory, seconds: purgatory.timer.add(Note(VirtualClock()), seconds),
    "add_later": lambda purgatory, seconds: purgatory.timer.add_later(Note(VirtualClock()), seconds),
    "reschedule of the timer": lambda purgatory, seconds: purgatory.timer.reschedule(Note(VirtualClock()), seconds),
    "reschedule_later": lambda purgatory, seconds: purgatory.timer.reschedule_later(Note(VirtualClock()), seconds),
    "call_at of the timer": lambda purgatory, seconds: purgatory.timer.call_at(seconds, print),
    "advance": lambda purgatory, seconds: VirtualClock().advance(seconds),
    "advance_to": lambda purgatory, seconds: VirtualClock().advance_to(seconds),
    "call_at": lambda purgatory, seconds: VirtualClock().call_at(seconds, print),
    "call_later": lambda purgatory, seconds: purgatory.timer.call_later(seconds, print),
    "wait_for": lambda purgatory, seconds: purgatory.wait_for(bool, "key", timeout=seconds),
    "start": lambda purgatory, seconds: VirtualClock(seconds),
}


@pytest.mark.parametrize("way", SECONDS)
@pytest.mark.parametrize(
    "seconds", ["1.5", b"1", [], 1j, ..., Decimal("1.5"), Fraction(3, 2), Decimal("NaN"), math.nan], ids=repr
)
def test_seconds_that_are_no_number_are_refused(purgatory: DelayedOperationPurgatory, way: str, seconds: Any) -> None:
    operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])
    is_float = isinstance(seconds, float)
    with pytest.raises(ValueError if is_float else TypeError, match=r"must be a number|must be finite"):
        SECONDS[way](purgatory, seconds)
    assert (operation._timer_deadline, purgatory.num_delayed, len(purgatory.timer)) == (60.0, 1, 1)


@pytest.mark.parametrize("seconds", [Decimal(1), Fraction(1)])
def test_a_number_of_another_type_is_refused_with_the_right_call(seconds: Any) -> None:
    with pytest.raises(TypeError, match=r"timeout must be a number of seconds, or None, not .*: call float\(timeout\)"):
        Flag(seconds)


@pytest.mark.parametrize("timeout", [-0.001, -math.inf, math.nan, math.inf, 10**400])
def test_timeouts_out_of_range_are_refused(purgatory: DelayedOperationPurgatory, timeout: float) -> None:
    operation = purgatory.try_complete_else_watch(Flag(1.0), ["key"])
    for use in (Flag, operation.reschedule):
        with pytest.raises(ValueError, match="timeout must be finite and not negative, or None for never, not"):
            use(timeout)
    assert operation._timer_deadline == 1.0


def test_an_operation_used_twice_is_refused(purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
    pending = purgatory.try_complete_else_watch(Flag(1.0), ["key"])
    other = DelayedOperationPurgatory(clock=clock)
    for again in (purgatory, other):
        with pytest.raises(PurgatoryMisuse, match="was already handed to a purgatory: create a new operation for"):
            again.try_complete_else_watch(pending, ["key"])
    assert not pending.done()
    clock.advance(1.0)
    for done in (pending, purgatory.try_complete_else_watch(Flag(ready=True), ["key"])):
        with pytest.raises(PurgatoryMisuse, match="was already handed to a purgatory"):
            other.try_complete_else_watch(done, ["key"])
    assert other.watched == 0


def test_an_operation_that_was_handed_over_is_not_made_again(purgatory: DelayedOperationPurgatory) -> None:
    operation = Flag(2.0)
    DelayedOperation.__init__(operation, 1.0)  # so far it may be
    purgatory.try_complete_else_watch(operation, ["key"])
    for _ in range(2):
        with pytest.raises(PurgatoryMisuse, match=r"cannot initialize <Flag .*> again: create a new operation for"):
            DelayedOperation.__init__(operation, 5.0)
        assert (operation.timeout, operation.deadline) == (1.0, 1.0)
        operation.cancel()
    assert purgatory.num_delayed == 0


class Lazy(Flag):
    def __init__(self) -> None:
        self.ready = True


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (None, "operation must be a DelayedOperation, not None"),
        (["key"], r"operation must be a DelayedOperation, not \['key'\]"),
        ("operation", "operation must be a DelayedOperation, not 'operation'"),
        (Flag, "operation must be an operation, not the class Flag"),
        (Lazy(), r"Lazy.__init__ must call super\(\).__init__\(timeout\)"),
    ],
)
def test_an_object_that_is_no_operation_is_refused(
    purgatory: DelayedOperationPurgatory, thing: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        purgatory.try_complete_else_watch(thing, ["key"])
    assert purgatory.watched == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"tick": 0}, ValueError, "tick must be finite and positive, not 0"),
        ({"tick": -1.0}, ValueError, "tick must be finite and positive, not -1.0"),
        ({"tick": math.inf}, ValueError, "tick must be finite and positive, not inf"),
        ({"tick": 9.99e-7}, ValueError, "tick must be at least 1e-06 seconds, not 9.99e-07"),
        ({"tick": "1"}, TypeError, "tick must be a number of seconds, not '1'"),
        ({"wheel_size": 1}, ValueError, "wheel_size must be at least 2, not 1"),
        ({"wheel_size": 2.5}, TypeError, "wheel_size must be an int, not 2.5"),
        ({"name": 0.01}, TypeError, "name must be a str, not 0.01"),
        ({"purge_interval": -1}, ValueError, "purge_interval must be at least 0, not -1"),
        ({"purge_interval": None}, TypeError, "purge_interval must be an int, not None"),
        ({"clock": 3}, TypeError, "clock must be an object with time"),
        ({"clock": VirtualClock}, TypeError, "clock must be an instance, not the class VirtualClock: pass"),
        ({"max_pending": 0}, ValueError, "max_pending must be at least 1, not 0"),
        ({"max_pending": "many"}, TypeError, "max_pending must be an int, not 'many'"),
    ],
)
def test_bad_parameters_are_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        DelayedOperationPurgatory(**{"name": "bad", "clock": VirtualClock(), **arguments})


def test_a_wheel_that_is_too_large_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        WheelTimer(VirtualClock(), wheel_size=2**61)


def test_limits_may_be_of_any_size() -> None:
    purgatory = DelayedOperationPurgatory(clock=VirtualClock(), max_pending=2**80, purge_interval=2**80)
    purgatory.try_complete_else_watch(Flag(None), ["key"])
    assert purgatory.num_delayed == 1


async def method(self: object, *args: object) -> None:
    """This method is never awaited."""


@pytest.mark.parametrize("name", ["try_complete", "on_complete", "on_expiration", "on_undelivered", "on_done"])
def test_methods_that_are_async_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match=f"Hopeful.{name} must not be async, because its result is not awaited"):
        type("Hopeful", (Flag,), {name: method})
    mixin: type = type("Mixin", (), {name: method})
    for base in (Flag, DelayedOperation):
        with pytest.raises(TypeError, match=name):
            type("Odd", (mixin, base), {})
    hidden = type("Fine", (Flag, mixin), {})
    assert hidden().name == "flag"


def test_a_listener_that_cannot_be_called_is_refused(purgatory: DelayedOperationPurgatory, clock: FaultLog) -> None:
    journal: Any = "journal"
    with pytest.raises(TypeError, match="listener must be callable, not 'journal'"):
        purgatory.add_listener(journal)
    with pytest.raises(TypeError, match="listener must not be async"):
        purgatory.add_listener(method)
    purgatory.try_complete_else_watch(Flag(ready=True), ["key"])
    assert clock.faults == []


def test_an_operation_without_an_event_loop_is_refused() -> None:
    operation = Flag(ready=True)
    with pytest.raises(
        RuntimeError, match="no running asyncio event loop: call it in a coroutine that asyncio runs, and not trio"
    ):
        DelayedOperationPurgatory().try_complete_else_watch(operation, ["key"])
    assert not operation.done(), "not even tried"


@pytest.mark.parametrize(("limit", "error"), [(0, ValueError), (-1, ValueError), (1.0, TypeError), ("1", TypeError)])
def test_bad_limits_are_refused(purgatory: DelayedOperationPurgatory, limit: Any, error: type[Exception]) -> None:
    operation = purgatory.try_complete_else_watch(Flag(), ["key"])
    operation.ready = True
    for check in (purgatory.check_and_complete, purgatory.check_and_complete_soon):
        for key in ("key", "another"):
            with pytest.raises(error, match="limit must be"):
                check(key, limit)
    assert not operation.done()
