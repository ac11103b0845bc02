"""Any public call may come at any point, on an event loop: calls of other threads, tasks that await, futures.

CI makes the calls at a part of the steps, HYPOTHESIS_PROFILE=searching at all of them.
"""

import asyncio
import gc
import os
from collections.abc import Iterator

import pytest

from tests.support.injection_on_a_loop import OUTER, inject_everywhere

SEARCHING = os.environ.get("HYPOTHESIS_PROFILE") == "searching"


@pytest.fixture(autouse=True)
def _by_reference_count_alone() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.timeout(3600 if SEARCHING else 600)
@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
@pytest.mark.parametrize("outer", OUTER, ids=lambda value: value.replace(" ", "_"))
def test_any_call_may_come_at_any_step(outer: str, debug: bool) -> None:
    share = 1 if SEARCHING else 11
    with asyncio.Runner(debug=debug, loop_factory=asyncio.SelectorEventLoop) as runner:
        report = runner.run(inject_everywhere(outer, every=lambda step, call: (step + call) % share == 0))
    assert report.combinations
    if report.failures:
        pytest.fail(str(report), pytrace=False)
