"""A callback may call anything; what breaks the contract leaves the structures of the core in C whole.

Each public call is made inside each other one, at each entry of a callback, and the invariants are checked. The plain
worlds have all combinations, the others a part. HYPOTHESIS_PROFILE=searching makes them all.
"""

import gc
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.support.cores import in_c
from tests.support.injection import Points, Report, inject_everywhere
from tests.support.worlds import PARTS

pytestmark = pytest.mark.usefixtures("by_reference_count_alone")

SEARCHING = os.environ.get("HYPOTHESIS_PROFILE") == "searching"

CASES = [(name, variant) for name, part in PARTS.items() for variant in part.variants]


def combinations(name: str, variant: str, points: Points, share: int) -> int:
    """Make one of `share` combinations. Returns how many these are."""
    share = 1 if SEARCHING else share
    report = Report()
    for outer in PARTS[name].outer:
        inject_everywhere(
            PARTS[name], variant, outer, points, report, every=lambda step, call: (step + call) % share == 0
        )
    if report.failures:
        pytest.fail(str(report), pytrace=False)
    return report.combinations


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_a_callback_may_make_any_call(name: str, variant: str) -> None:
    assert combinations(name, variant, "callbacks", 1 if variant == "plain" else 6) > 50


@in_c
@pytest.mark.parametrize(("name", "variant"), CASES)
def test_a_call_that_breaks_the_contract_leaves_the_structure_whole(name: str, variant: str) -> None:
    assert combinations(name, variant, "elsewhere", 11) > 50


def quietly(call: Callable[[Any], object], world: Any) -> None:
    with suppress(Exception):
        call(world)


class _Cycle:
    """Garbage that the collector finds."""

    def __init__(self) -> None:
        self.itself = self


@contextmanager
def finalizing(nth: int, finalizer: Callable[[], object]) -> Iterator[None]:
    """Have the collector call `finalizer` at the `nth` allocation of a container, up to CPython 3.11, or about then.

    There the collector runs in the middle of an expression, where a profile function is not called.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    weakref.finalize(_Cycle(), finalizer).atexit = False
    # Lists and tuples are allocated only when the interpreter's free ones are in use.
    in_use: list[object] = [[[] for _ in range(100)]]
    in_use += [(n,) for n in range(2100)]
    in_use += [(n, n) for n in range(2100)]
    gc.set_threshold(gc.get_count()[0] + nth, 10_000, 10_000)
    gc.enable()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.disable()


@in_c
@pytest.mark.parametrize("name", PARTS)
def test_a_finalizer_that_breaks_the_contract_leaves_the_structure_whole(name: str) -> None:
    part = PARTS[name]
    calls = list(part.injected.values())
    for number, outer in enumerate(part.outer.values()):
        for nth in range((SEARCHING and 400) or 20):
            world = part.make(part.variants[nth % len(part.variants)])
            call = calls[(7 * number + nth) % len(calls)]
            world.misbehave(number + nth)
            with suppress(Exception), finalizing(nth, lambda: quietly(call, world)):  # noqa: B023
                outer(world)
            world.check_whole()
