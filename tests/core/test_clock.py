"""The virtual clock."""

import heapq
import logging
import math
import re
from typing import Any

import pytest

from purgatory import VirtualClock
from tests.support.operations import raising


def test_callbacks_run_in_order_of_time_then_of_coming_each_at_its_own_time(clock: VirtualClock) -> None:
    ran: list[tuple[str, float]] = []

    def note(name: str) -> None:
        ran.append((name, clock.time()))

    clock.call_at(2.0, note, "second")
    clock.call_at(1.0, note, "first")
    cancelled = clock.call_at(2.0, note, "cancelled")
    clock.call_at(2.0, note, "third")
    clock.call_at(1.0, clock.call_at, 2.0, note, "asked for in the same move")
    clock.call_at(9.0, note, "later")
    for _ in range(2):
        cancelled.cancel()
    clock.advance(5.0)
    assert ran == [("first", 1.0), ("second", 2.0), ("third", 2.0), ("asked for in the same move", 2.0)]
    clock.call_at(1.0, note, "past")
    assert len(ran) == 4
    clock.advance_to(5.0)
    assert ran[4:] == [("past", 5.0)], "at the next move, and not before"


def test_an_exception_is_raised_by_advance_and_the_rest_stays_scheduled(clock: VirtualClock) -> None:
    ran: list[float] = []

    clock.call_at(1.0, raising())
    clock.call_at(2.0, lambda: ran.append(clock.time()))
    with pytest.raises(LookupError):
        clock.advance(5.0)
    assert clock.time() == 1.0
    clock.advance(1.0)
    assert ran == [2.0]


def test_a_callback_cannot_move_the_time(clock: VirtualClock) -> None:
    clock.call_at(1.0, clock.advance, 1.0)
    with pytest.raises(RuntimeError, match="being advanced already"):
        clock.advance(1.0)


@pytest.mark.parametrize(
    ("when", "message"),
    [(math.nan, "finite"), (math.inf, "finite"), (0.5, "when must be at least 1.0, not 0.5: time does not")],
)
def test_a_move_backwards_or_to_no_finite_time_is_refused(when: float, message: str) -> None:
    clock = VirtualClock(1.0)
    with pytest.raises(ValueError, match=re.escape(message)):
        clock.advance_to(when)
    assert clock.time() == 1.0


def test_uncaught_exceptions_go_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    error = LookupError("lost")
    VirtualClock().call_exception_handler({"message": "something raised", "exception": error})
    assert caplog.record_tuples == [("purgatory", logging.ERROR, "something raised")]
    assert caplog.records[0].exc_info is not None
    assert caplog.records[0].exc_info[1] is error


@pytest.mark.parametrize("live", [0, 10, 1000])
def test_cancelled_calls_are_dropped_seldom_but_in_time(live: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rebuilt: list[int] = []

    def heapify(heap: list[Any]) -> None:
        rebuilt.append(len(heap))
        heapq.heapify(heap)

    monkeypatch.setattr("purgatory._loop.clock.heapify", heapify)
    clock = VirtualClock()
    ran: list[int] = []
    for n in range(live):
        clock.call_at(2.0 + n, ran.append, n)
    for _ in range(10_000):
        clock.call_at(1.0, ran.append, -1).cancel()
        assert len(clock._heap) <= max(2 * live, live + 64) + 1
    assert set(rebuilt) == {live}
    assert len(rebuilt) == 10_000 // (max(live, 64) + 1)
    assert repr(clock) == f"<VirtualClock time=0.0 scheduled={live}>"
    clock.advance(2000.0)
    assert ran == list(range(live))
