"""`repr`, `help` and `inspect.signature`: what a user sees of an object."""

import asyncio
import inspect
import pydoc
from typing import Any

import pytest

import purgatory as package
from purgatory import (
    Delay,
    DelayedOperation,
    DelayedOperationPurgatory,
    IdleTracker,
    ThresholdPurgatory,
    TimerTask,
    VirtualClock,
    WheelTimer,
)
from purgatory._loop.closing import Unique
from tests.support.operations import CallingClock, FaultLog, Flag, Note, Waiting, raising

CLASSES = [each for each in vars(package).values() if isinstance(each, type) and each.__name__ in package.__all__]


class Plain(Waiting):
    """Has no constructor of its own."""


class TestRepr:
    @pytest.mark.parametrize(
        ("timeout", "passed", "expected"),
        [
            (30.0, 0.1, "pending, due in 29.9 s"),
            (30.0, 29.75, "pending, due in 0.250 s"),
            (3600.0, 0.0, "pending, due in 3600.0 s"),
            (None, 5.0, "pending, without a deadline"),
            (1.0, 3.5, "pending, due 2.5 s ago"),
        ],
    )
    def test_a_pending_operation_says_when_it_is_due(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, timeout: float | None, passed: float, expected: str
    ) -> None:
        operation = purgatory.try_complete_else_watch(Flag(timeout), ["key"])
        clock._now = passed  # so the last one is overdue
        assert repr(operation) == f"<Flag {expected}>"

    @pytest.mark.parametrize("kind", [each for each in CLASSES if issubclass(each, Unique)])
    def test_it_never_raises_even_before_the_constructor_was_called(self, kind: type) -> None:
        whole: Any = type("Whole", (kind,), dict.fromkeys(getattr(kind, "__abstractmethods__", ())))
        assert repr(whole.__new__(whole)).startswith("<Whole ")

    def test_it_says_what_another_property_raised(self) -> None:
        class Broken(ThresholdPurgatory[int]):
            @property
            def num_waiting(self) -> int:
                raise LookupError

        assert repr(Broken(1)).endswith("Broken, whose repr raised LookupError>")

    def test_it_never_raises_when_the_clock_does(self) -> None:
        clock = CallingClock()
        operation = DelayedOperationPurgatory(clock=clock).try_complete_else_watch(Flag(1.0), ["key"])
        clock.arm(0, raising())
        assert repr(operation) == "<Flag pending, due at 1.0>"

    def test_of_a_wait_for_names_the_predicate(self, purgatory: DelayedOperationPurgatory) -> None:
        def is_ready() -> bool:
            return False

        operation = purgatory.wait_for(is_ready, "key", timeout=3.0)
        assert repr(operation) == f"<DelayedPredicate pending, due in 3.0 s, predicate {is_ready.__qualname__}>"

    def test_of_the_others(self, clock: FaultLog) -> None:
        timer = WheelTimer(clock)
        note: TimerTask = type("Plain", (TimerTask,), {"run": print})()
        timer.add(note, 2.0)
        timer.add(Note(clock), 3.0)
        objects = {
            timer: "<WheelTimer tick=0.001 tasks=2 levels=3>",
            note: "<Plain deadline=2.0>",
            Delay(1.0): "<Delay new timeout=1.0>",
            IdleTracker(1.0, clock=clock): "<IdleTracker timeout=1.0 tracked=0>",
            VirtualClock(): "<VirtualClock time=0.0 scheduled=0>",
        }
        assert list(map(repr, objects)) == list(objects.values())


class TestHelp:
    def test_a_class_with_a_constructor_of_its_own_has_its_signature(self) -> None:
        assert list(inspect.signature(Flag).parameters) == ["timeout", "name", "ready", "calls", "then"]
        assert list(inspect.signature(Plain).parameters) == ["timeout"]

    def test_help_says_what_the_constructor_takes(self) -> None:
        text = pydoc.plain(pydoc.render_doc(DelayedOperation))
        assert "__init__(self, " in text
        assert "timeout: Seconds to wait at most" in text
        assert "Release whatever the operation has acquired" in text

    async def test_asyncio_wait_says_what_to_pass(self, purgatory: DelayedOperationPurgatory) -> None:
        operation: Any = purgatory.try_complete_else_watch(Flag(1.0), ["key"])
        with pytest.raises(
            AttributeError, match=r"<Flag pending.* is not a future: pass asyncio.ensure_future\(operation"
        ):
            await asyncio.wait([operation])
        assert not hasattr(operation, "add_done_callback")


PUBLIC = (
    "add_done_callback as_future cancel cancelled deadline done exception expired fail force_complete on_complete"
    " on_done on_expiration on_undelivered outcome reschedule result timeout try_complete"
)
OF_PYTHON = {"_abc_impl", "_is_protocol"}


@pytest.mark.parametrize(("kind", "public"), [(DelayedOperation, PUBLIC), (TimerTask, "run")])
def test_internal_names_have_a_prefix_so_all_others_are_the_user_s(kind: type, public: str) -> None:
    names = {name for name in dir(kind) if not (name.startswith("__") and name.endswith("__"))} - OF_PYTHON
    assert {name for name in names if not name.startswith(("_purgatory_", "_timer_"))} == set(public.split())
