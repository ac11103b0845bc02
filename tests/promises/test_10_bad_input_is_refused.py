"""Promise 10: bad input is refused before anything is registered."""

import asyncio
import math
from typing import Any

import pytest

from purgatory import DelayedOperationPurgatory, PurgatoryError, VirtualClock
from tests.support.operations import Flag


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ([], ValueError, "at least one key"),
        (iter(()), ValueError, "at least one key"),
        ("topic-1", TypeError, "keys must be an iterable of keys, not the str 'topic-1'"),
        (b"topic-1", TypeError, "not the bytes"),
        (7, TypeError, "not iterable"),
        (None, TypeError, "not iterable"),
        (["key", []], TypeError, "unhashable"),
        ([{}], TypeError, "unhashable"),
    ],
)
def test_bad_keys_are_refused(
    purgatory: DelayedOperationPurgatory, keys: Any, error: type[Exception], message: str
) -> None:
    operation = Flag(1.0, ready=True)
    with pytest.raises(error, match=message):
        purgatory.try_complete_else_watch(operation, keys)
    assert not operation.done(), "not even tried"
    assert (purgatory.num_delayed, purgatory.watched, len(purgatory.timer)) == (0, 0, 0)
    assert purgatory.try_complete_else_watch(operation, ["key"]).done()


@pytest.mark.parametrize("timeout", [-0.001, -math.inf, math.nan, math.inf, 10**400])
def test_bad_timeouts_are_refused(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout must be finite and not negative, or None for never, not"):
        Flag(timeout)


@pytest.mark.parametrize("timeout", ["1", [], 1j])
def test_timeouts_that_are_no_number_are_refused(timeout: Any) -> None:
    with pytest.raises(TypeError, match="timeout must be a number of seconds or None, not"):
        Flag(timeout)


def test_an_operation_used_twice_is_refused(purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
    pending = purgatory.try_complete_else_watch(Flag(1.0), ["key"])
    other = DelayedOperationPurgatory(clock=clock)
    for again in (purgatory, other):
        with pytest.raises(PurgatoryError, match="has been used"):
            again.try_complete_else_watch(pending, ["key"])
    clock.advance(1.0)
    for done in (pending, purgatory.try_complete_else_watch(Flag(ready=True), ["key"])):
        with pytest.raises(PurgatoryError, match="an operation serves once"):
            other.try_complete_else_watch(done, ["key"])
    assert other.watched == 0


def test_an_operation_that_its_try_hands_over_again_fails(purgatory: DelayedOperationPurgatory) -> None:
    class Greedy(Flag):
        def try_complete(self) -> bool:
            purgatory.try_complete_else_watch(self, ["other"])
            return False

    operation = purgatory.try_complete_else_watch(Greedy(), ["key"])
    assert "has been used" in str(operation.exception())
    assert purgatory.watched == 0


@pytest.mark.parametrize("thing", [None, "operation", object()])
def test_an_object_that_is_no_operation_is_refused(purgatory: DelayedOperationPurgatory, thing: Any) -> None:
    with pytest.raises(TypeError, match="a DelayedOperation whose __init__"):
        purgatory.try_complete_else_watch(thing, ["key"])


def test_a_class_in_place_of_an_operation_is_refused(purgatory: DelayedOperationPurgatory) -> None:
    thing: Any = Flag
    with pytest.raises(TypeError, match="an operation is needed, not the class Flag"):
        purgatory.try_complete_else_watch(thing, ["key"])


def test_an_operation_that_was_not_initialised_is_refused(purgatory: DelayedOperationPurgatory) -> None:
    class Lazy(Flag):
        def __init__(self) -> None:
            self.ready = True

    with pytest.raises(TypeError, match="is needed, not this test_an_operation"):
        purgatory.try_complete_else_watch(Lazy(), ["key"])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"tick": 0}, ValueError, "tick must be"),
        ({"tick": -1.0}, ValueError, "tick must be finite and positive, not -1.0"),
        ({"tick": math.nan}, ValueError, "tick must be finite and positive, not nan"),
        ({"tick": "1"}, TypeError, "tick must be a number of seconds, not '1'"),
        ({"wheel_size": 1}, ValueError, "wheel_size must be at least 2, not 1"),
        ({"wheel_size": 2.5}, TypeError, "wheel_size must be an int, not 2.5"),
        ({"name": 0.01}, TypeError, "name must be a str, not 0.01"),
        ({"purge_interval": -1}, ValueError, "purge_interval must be at least 0, not -1"),
        ({"purge_interval": None}, TypeError, "purge_interval must be an int, not None"),
        ({"clock": 3}, TypeError, "clock must have time"),
        ({"clock": VirtualClock}, TypeError, "clock must be an instance of a clock, not the class VirtualClock"),
        ({"max_pending": 0}, ValueError, "max_pending must be at least 1, not 0"),
        ({"max_pending": "many"}, TypeError, "max_pending must be an int, not 'many'"),
    ],
)
def test_bad_parameters_are_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        DelayedOperationPurgatory(**{"name": "bad", **arguments})


@pytest.mark.parametrize("name", ["try_complete", "on_complete", "on_expiration", "on_undelivered"])
def test_methods_that_are_async_are_refused(name: str) -> None:
    async def method(self: Flag) -> None:
        pass

    with pytest.raises(TypeError, match=f"Hopeful.{name} must not be async"):
        type("Hopeful", (Flag,), {name: method})


def test_an_operation_without_an_event_loop_is_refused() -> None:
    with asyncio.Runner() as runner:
        for purgatory in (DelayedOperationPurgatory(), DelayedOperationPurgatory(clock=runner.get_loop())):
            operation = Flag(ready=True)
            with pytest.raises(RuntimeError, match="no running event loop"):
                purgatory.try_complete_else_watch(operation, ["key"])
            assert not operation.done(), "not even tried"


@pytest.mark.parametrize("given", [True, False], ids=["clock given", "bound at first use"])
def test_the_wrong_event_loop_is_refused(given: bool) -> None:
    async def use(purgatory: DelayedOperationPurgatory) -> None:
        purgatory.try_complete_else_watch(Flag(ready=True), ["key"])

    async def enter(purgatory: DelayedOperationPurgatory) -> None:
        async with purgatory:
            pass

    with asyncio.Runner() as runner, asyncio.Runner() as other:
        purgatory = DelayedOperationPurgatory(clock=runner.get_loop() if given else None)
        runner.run(use(purgatory))
        for way in (use, enter):
            with pytest.raises(PurgatoryError, match="another event loop"):
                other.run(way(purgatory))
        runner.run(enter(purgatory))


@pytest.mark.parametrize(("limit", "error"), [(0, ValueError), (-1, ValueError), (1.0, TypeError), ("1", TypeError)])
def test_bad_limits_are_refused(purgatory: DelayedOperationPurgatory, limit: Any, error: type[Exception]) -> None:
    operation = purgatory.try_complete_else_watch(Flag(), ["key"])
    operation.ready = True
    for check in (purgatory.check_and_complete, purgatory.check_and_complete_soon):
        with pytest.raises(error, match="limit must be"):
            check("key", limit)
    assert not operation.done()


async def test_a_check_of_an_unhashable_key_is_refused(purgatory: DelayedOperationPurgatory) -> None:
    key: Any = []
    live = DelayedOperationPurgatory()
    for check in (
        purgatory.check_and_complete,
        purgatory.check_and_complete_soon,
        live.check_and_complete_threadsafe,
        purgatory.cancel_for_key,
    ):
        with pytest.raises(TypeError, match="unhashable"):
            check(key)
