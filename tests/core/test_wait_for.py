"""`wait_for`: an operation whose condition is a predicate."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import DelayedOperationPurgatory, FinishedOperation
from tests.support.operations import FaultLog, turn


class Predicate:
    """Returns a value, and counts its calls."""

    def __init__(self, value: Any = False) -> None:
        self.value = value
        self.calls = 0

    def __call__(self) -> Any:
        self.calls += 1
        return self.value


class TestResults:
    async def test_it_yields_the_true_value_unchanged(self) -> None:
        found: list[int] = []
        async with DelayedOperationPurgatory() as purgatory:
            waiting = asyncio.ensure_future(purgatory.wait_for(lambda: found, "key", timeout=30.0))
            await turn()
            found.append(7)
            assert purgatory.check_and_complete("key") == 1
            assert await waiting is found

    @pytest.mark.parametrize("false", [False, None, 0, []])
    def test_it_yields_the_false_value_at_the_deadline_and_raises_nothing(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, false: Any
    ) -> None:
        predicate = Predicate(false)
        operation = purgatory.wait_for(predicate, "key", timeout=1.0)
        clock.advance(1.0)
        assert operation.result() is false
        assert (operation.outcome, predicate.calls) == ("expired", 3)

    @pytest.mark.parametrize("end", ["close", "force_complete"])
    def test_a_close_does_not_call_the_predicate_again(self, purgatory: DelayedOperationPurgatory, end: str) -> None:
        predicate = Predicate()
        operation = purgatory.wait_for(predicate, "key")
        predicate.value = True
        if end == "close":
            purgatory.close()
        else:
            operation.force_complete()
        assert (operation.result(), predicate.calls) == (False, 2)

    def test_the_predicate_is_called_twice_now_and_once_for_each_check(
        self, purgatory: DelayedOperationPurgatory
    ) -> None:
        predicate = Predicate()
        purgatory.wait_for(predicate, "a", "b")
        assert predicate.calls == 2
        for key in ("a", "b", "c"):
            purgatory.check_and_complete(key)
        assert predicate.calls == 4

    def test_an_exception_of_the_predicate_comes_out(self, purgatory: DelayedOperationPurgatory) -> None:
        holds: dict[str, bool] = {"ready": False}
        operation = purgatory.wait_for(lambda: holds["ready"], "key")
        del holds["ready"]
        assert purgatory.check_and_complete("key") == 0
        assert isinstance(operation.exception(), KeyError)

    def test_a_str_is_one_key(self, purgatory: DelayedOperationPurgatory) -> None:
        purgatory.wait_for(Predicate(), "topic-1", ("topic", 2), "topic-1")
        purgatory.wait_for(Predicate(), 7)
        purgatory.wait_for(Predicate(), 7, 8)
        assert purgatory.watched_keys() == ["topic-1", ("topic", 2), 7, 8]

    def test_its_record_names_its_keys(self, purgatory: DelayedOperationPurgatory) -> None:
        heard: list[FinishedOperation] = []
        purgatory.add_listener(heard.append)
        assert purgatory.wait_for(Predicate("ready"), "a", "b", timeout=3).result() == "ready"
        record = [(each.operation, each.keys, each.timeout, each.outcome) for each in heard]
        assert record == [("DelayedPredicate", ("a", "b"), 3.0, "completed_at_once")]


async def is_ready() -> bool:
    return True


def forgetful() -> object:
    return is_ready()  # and its result is true, whatever it is


class Asynchronous:
    async def __call__(self) -> bool:
        return True


text: Any = "topic-1"

WRONG: dict[str, tuple[Callable[[DelayedOperationPurgatory], object], type[Exception], str]] = {
    "no keys": (
        lambda purgatory: purgatory.wait_for(bool),
        ValueError,
        "wait_for needs a key, because nothing polls: the predicate is called again when check_and_complete(key) is. "
        "Call wait_for(predicate, key)",
    ),
    "swapped": (
        lambda purgatory: purgatory.wait_for(text, bool),
        TypeError,
        "predicate must be a function that is called again and again, not 'topic-1': "
        "call wait_for(lambda: condition, *keys)",
    ),
    "async": (lambda purgatory: purgatory.wait_for(is_ready, "key"), TypeError, "predicate must not be async"),
    "an async call": (
        lambda purgatory: purgatory.wait_for(Asynchronous(), "key"),
        TypeError,
        "predicate must not be async",
    ),
    "a list": (
        lambda purgatory: purgatory.wait_for(bool, ["a", "b"]),  # type: ignore[arg-type]
        TypeError,
        "a key must be hashable, not the list ['a', 'b']: call wait_for(predicate, *keys), with each key as an "
        "argument of its own",
    ),
    "a timeout by position": (
        lambda purgatory: purgatory.wait_for(bool, "key", 30.0),
        TypeError,
        "a timeout is passed by name, as timeout=30.0, or else the number is a key",
    ),
    "an int by position": (lambda purgatory: purgatory.wait_for(bool, "key", 30), TypeError, "as timeout=30,"),
    "a timeout alone": (lambda purgatory: purgatory.wait_for(bool, 30.0), TypeError, "as timeout=30.0,"),
    "a timeout first": (lambda purgatory: purgatory.wait_for(bool, 0.05, "key"), TypeError, "as timeout=0.05,"),
}


class TestErrors:
    @pytest.mark.parametrize("what", WRONG)
    def test_a_wrong_argument_is_refused_with_the_right_call(
        self, purgatory: DelayedOperationPurgatory, what: str
    ) -> None:
        call, error, message = WRONG[what]
        with pytest.raises(error, match=re.escape(message)):
            call(purgatory)
        assert (purgatory.num_delayed, purgatory.watched) == (0, 0)

    def test_a_predicate_that_returns_a_coroutine_fails(self, purgatory: DelayedOperationPurgatory) -> None:
        operation = purgatory.wait_for(forgetful, "key")
        with pytest.raises(TypeError, match=r"must not be async: it returned a coroutine"):
            operation.result()
