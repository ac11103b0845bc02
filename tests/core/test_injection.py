"""Any public call may come at any point: each is made at every step of each, and the invariants are checked.

CI makes each combination of calls at a part of the steps in the plain world, and at fewer in the other variants.
HYPOTHESIS_PROFILE=searching makes them at all steps.
"""

import gc
import os
from collections.abc import Iterator

import pytest

from purgatory import _speedups
from tests.support.injection import inject_everywhere
from tests.support.worlds import PARTS

SEARCHING = os.environ.get("HYPOTHESIS_PROFILE") == "searching"

CASES = [(name, variant, outer) for name, part in PARTS.items() for variant in part.variants for outer in part.outer]


@pytest.fixture(autouse=True)
def _by_reference_count_alone() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.timeout(3600 if SEARCHING else 600)
@pytest.mark.parametrize(("name", "variant", "outer"), CASES, ids=lambda value: value.replace(" ", "_"))
def test_any_call_may_come_at_any_step(name: str, variant: str, outer: str) -> None:
    part = PARTS[name]
    share = 1 if SEARCHING else 5 if variant == "plain" else 17
    report = inject_everywhere(part, variant, outer, every=lambda step, call: (step + call) % share == 0)
    assert report.combinations or _speedups.c is not None  # some calls have no step there at which another may come
    if report.failures:
        pytest.fail(str(report), pytrace=False)
