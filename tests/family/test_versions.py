"""`VersionedValues`: its methods, its refusals, and that nothing is missed and nothing is left behind."""

import asyncio
import weakref
from collections import ChainMap
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import (
    DelayedOperation,
    DelayedOperationPurgatory,
    FinishedOperation,
    PurgatoryClosed,
    VersionedValues,
)
from tests.support.operations import FaultLog, Moody

Values = VersionedValues[str, Any]


class Payload:
    """A value that can be referred to weakly."""


@pytest.fixture
def values(clock: FaultLog) -> Values:
    return VersionedValues(purgatory=DelayedOperationPurgatory(clock=clock))


def is_ready(state: str) -> bool:
    return state == "ready"


class TestSet:
    def test_setting_none_or_the_same_value_is_a_change(self, values: Values) -> None:
        for version in (1, 2):
            change = values.changed({"a": version - 1}, None)
            assert values.set("a", None) == version
            assert change.result() == {"a": (version, None)}

    def test_a_request_to_exit_is_raised_when_all_keys_are_tried_and_the_other_waits_are_tried_next(
        self, values: Values, clock: FaultLog
    ) -> None:
        def leave(_: FinishedOperation) -> None:
            values.purgatory.remove_listener(leave)
            raise SystemExit

        values.purgatory.add_listener(leave)
        waits = [values.changed({key: 0}, None) for key in "aab"]
        with pytest.raises(SystemExit):
            values.update({"a": "x", "b": "y"})
        assert [wait.done() for wait in waits] == [True, False, True]
        clock.advance(0)
        assert waits[1].result() == {"a": (1, "x")}
        assert values.set("a", "z") == 3

    def test_a_key_that_cannot_be_looked_up_keeps_no_other_from_its_waits(
        self, values: VersionedValues[Any, str]
    ) -> None:
        odd = Moody()
        values.purgatory.add_listener(lambda _: odd.sour())
        waits = [values.changed({key: 0}, None) for key in ("a", "b")]
        with pytest.raises(LookupError):
            values.update({"a": "x", odd: "y", "b": "z"})
        assert [wait.done() for wait in waits] == [True, True]

    def test_an_update_that_a_key_breaks_has_tried_the_waits_of_those_before(
        self, values: VersionedValues[Any, int]
    ) -> None:
        odd = Moody()
        update = {"a": 1, odd: 2, "b": 3}
        odd.sour()
        changed, until = values.changed({"a": 0}, 1.0), values.until("a", (1).__eq__, 1.0)
        with pytest.raises(LookupError):
            values.update(update)
        assert (values.get("a"), values.get("b")) == ((1, 1), (0, None))
        assert (changed.result(), until.result()) == ({"a": (1, 1)}, (1, 1))


class TestChanged:
    def test_a_change_by_a_listener_is_yielded_by_the_waits_after_it(self, values: Values) -> None:
        def set_again(finished: FinishedOperation) -> None:
            values.purgatory.remove_listener(set_again)
            values.set("a", "y")

        values.purgatory.add_listener(set_again)
        waits = [values.changed({"a": 0}, None) for _ in range(3)]
        assert values.set("a", "x") == 1
        assert [wait.result() for wait in waits] == [{"a": (1, "x")}, {"a": (2, "y")}, {"a": (2, "y")}]

    def test_a_wait_that_a_listener_begins_waits_for_the_next_change(self, values: Values) -> None:
        begun: list[DelayedOperation[Any]] = []
        values.purgatory.add_listener(lambda _: begun.append(values.changed({"a": values.get("a")[0]}, None)))
        values.changed({"a": 0}, None)
        values.set("a", "x")
        assert [wait.done() for wait in begun] == [False]
        values.set("a", "y")
        assert begun[0].result() == {"a": (2, "y")}


class TestUntil:
    def test_a_wait_that_begins_after_the_state_does_not_see_it(self, values: Values) -> None:
        begun: list[DelayedOperation[Any]] = []

        def go_on(_: FinishedOperation) -> None:
            values.purgatory.remove_listener(go_on)
            values.set("a", "gone")
            begun.append(values.until("a", is_ready, None))

        values.purgatory.add_listener(go_on)
        waits = [values.until("a", is_ready, None) for _ in range(2)]
        values.set("a", "ready")
        assert [wait.done() for wait in (*waits, *begun)] == [True, True, False]
        values.purgatory.check_and_complete("a")
        assert not begun[0].done()

    def test_each_wait_of_a_long_chain_yields_its_own_state(self, values: Values) -> None:
        values.purgatory.add_listener(lambda _: values.set("a", values.get("a")[0]))
        waits = [values.until("a", number.__eq__, None) for number in range(50)]
        values.set("a", 0)
        assert [wait.result() for wait in waits] == [(number + 1, number) for number in range(50)]

    def test_a_predicate_may_set_the_value(self, values: Values) -> None:
        def start(state: str) -> bool:
            if state == "new":
                values.set("a", "ready")
            return state == "ready"

        state = values.until("a", start, None)
        assert values.set("a", "new") == 1
        assert state.result() == (2, "ready")

    def test_predicates_of_other_keys_are_not_called(self, values: Values) -> None:
        called: list[str] = []
        for number in range(1000):
            values.until(f"other {number}", called.append, None)
        values.until("a", called.append, None)
        values.set("a", "new")
        assert called == ["new"]


class TestMemory:
    def test_keys_without_a_value_and_without_a_wait_leave_nothing(self, clock: FaultLog) -> None:
        values: Values = VersionedValues(purgatory=DelayedOperationPurgatory(clock=clock, purge_interval=0))
        kept = values.changed({"kept": 0}, None)
        for number in range(1000):
            values.changed({f"{number} {name}": 0 for name in "abc"}, 1.0)
            values.until(f"{number} a", is_ready, 1.0)
            values.set("set and deleted", number)
            values.delete("set and deleted")
        clock.advance(2.0)
        clock.advance(0.0)
        assert values.purgatory.watched_keys() == ["kept"]
        assert (values.num_waiting, values.purgatory.watched, len(values.purgatory.timer)) == (1, 1, 0)
        assert (values._values, values._announced) == ({}, {})
        assert not kept.done()

    @pytest.mark.usefixtures("by_reference_count_alone")
    def test_replaced_values_and_finished_waits_are_let_go(
        self, values: VersionedValues[str, Payload], clock: FaultLog
    ) -> None:
        payload = Payload()
        references: list[weakref.ref[Any]] = [weakref.ref(payload)]
        waits: list[DelayedOperation[Any]] = [values.changed({"a": 0}, None), values.until("a", bool, None)]
        values.set("a", payload)
        assert {wait.done() for wait in waits} == {True}
        values.set("a", Payload())
        waits += [values.changed({"b": 0, "c": 0}, 1.0), values.until("c", bool, 1.0)]
        references += map(weakref.ref, waits)
        clock.advance(2.0)
        waits.clear()
        del payload
        assert [reference() for reference in references] == [None] * 5


class TestClosing:
    async def test_a_close_completes_every_wait(self) -> None:
        async with VersionedValues[str, str]() as values:
            version = values.set("a", "x")
            change, state = values.changed({"a": version}, None), values.until("a", is_ready, None)
        assert (await change, await state) == ({}, None)
        assert (change.outcome, state.outcome) == ("closed", "closed")
        for refused in (lambda: values.changed({"a": version}, None), lambda: values.until("a", is_ready, None)):
            with pytest.raises(PurgatoryClosed):
                refused()
        with pytest.raises(PurgatoryClosed):
            await values.__aenter__()
        await values.aclose()
        assert values.set("a", "x") == 2, "values outlive a close"

    def test_close_completes_every_wait_at_once(self, values: Values) -> None:
        values.purgatory.add_listener(lambda _: values.close())
        waits = [values.changed({"a": 0}, None) for _ in range(2)]
        values.set("a", "x")
        assert [wait.outcome for wait in waits] == ["satisfied", "closed"]
        assert [wait.result() for wait in waits] == [{"a": (1, "x")}] * 2


class TestArguments:
    def test_any_mapping_and_any_int_is_accepted(self, values: VersionedValues[str, int]) -> None:
        zeros = ChainMap({"a": 0, "b": 0})
        values.update(zeros)
        assert values.changed(zeros, None).result() == {"a": (1, 0), "b": (2, 0)}
        assert values.changed({"a": False}, None).result() == {"a": (1, 0)}

    @pytest.mark.parametrize(
        ("seen", "error", "message"),
        [
            (["a"], TypeError, r"seen must be a mapping of keys to versions, not \['a'\]"),
            ({"a": "1"}, TypeError, "version of 'a' must be an int, not '1'"),
            ({"a": 0, "b": None}, TypeError, "version of 'b' must be an int, not None"),
            ({"a": -1}, ValueError, "version of 'a' must be between 0 and 1 .the latest issued., not -1"),
            ({"a": 2}, ValueError, "version of 'a' must be between 0 and 1 .the latest issued., not 2"),
            ({}, ValueError, "seen must not be empty"),
        ],
    )
    def test_bad_versions_are_refused(self, values: Values, seen: Any, error: type[Exception], message: str) -> None:
        values.set("a", "x")
        with pytest.raises(error, match=message):
            values.changed(seen, None)
        assert (values.num_waiting, values.purgatory.watched) == (0, 0)

    def test_other_bad_arguments_are_refused(self, values: Values) -> None:
        async def is_ready_soon(state: str) -> bool:
            return True

        text: Any = "ready"
        key: Any = []
        calls: list[tuple[Callable[[], object], type[Exception], str]] = [
            (lambda: values.changed({"a": 0}, -1.0), ValueError, "timeout must be"),
            (lambda: values.until("a", text, None), TypeError, "predicate must be callable, not 'ready'"),
            (lambda: values.until("a", is_ready_soon, None), TypeError, "predicate must not be async"),
            (lambda: values.until(key, is_ready, None), TypeError, "unhashable"),
            (lambda: values.set(key, "x"), TypeError, "unhashable"),
            (lambda: values.update(text), TypeError, "values must be a mapping of keys to values, not 'ready'"),
            (lambda: VersionedValues(text), TypeError, "version must be an int, not 'ready'"),
            (lambda: VersionedValues(-1), ValueError, "version must be at least 0, not -1"),
            (lambda: VersionedValues(0, text), TypeError, "purgatory must be a DelayedOperationPurgatory, not 'ready'"),
        ]
        for call, error, message in calls:
            with pytest.raises(error, match=message):
                call()
        assert (values.num_waiting, values.purgatory.watched, values._values) == (0, 0, {})


def test_values_are_set_without_a_loop() -> None:
    made: Values = VersionedValues()
    made.set("a", "x")

    async def main() -> None:
        async with made:
            assert await made.changed({"a": 0}, None) == {"a": (1, "x")}

    asyncio.run(main())


def test_repr_of_versioned_values_shows_number_of_keys_and_waits(values: Values) -> None:
    values.set("a", "x")
    values.changed({"b": 0}, None)
    assert repr(values) == "<VersionedValues 'purgatory' keys=1 waiting=1>"
    assert repr(VersionedValues()) == "<VersionedValues 'versions' keys=0 waiting=0>"
