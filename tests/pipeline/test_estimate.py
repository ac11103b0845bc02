"""The statistics, without Spark."""

import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.pipeline.estimate import BLOCKS, EDGES, LOWEST, Ends, estimate


def place(seconds: float) -> int:
    """The bin of a time."""
    return math.ceil(100 * math.log10(max(seconds, 1e-6)) - 1e-7) - LOWEST


def ends(operations: Iterable[tuple[int, float, bool]]) -> Ends:
    """Ends of operations: the block, the wait in seconds, and whether it has left before its deadline."""
    seen = np.zeros((1, BLOCKS, len(EDGES)))
    gone = np.zeros_like(seen)
    for block, wait, is_gone in operations:
        seen[0, block, place(wait)] += 1
        gone[0, block, place(wait)] += is_gone
    return Ends(gone, seen, {"left": gone.sum(axis=(0, 1))}, np.linspace(0.0, 2340.0, BLOCKS), are_days=False)


def drawn(timeout: float, count: int = 4000) -> list[tuple[int, float, bool]]:
    """Operations whose times are log-normal."""
    random = np.random.default_rng(0)
    takes = random.lognormal(0.0, 1.0, count)
    return [
        (int(block), min(take, timeout), take <= timeout)
        for block, take in zip(random.integers(0, BLOCKS, count), takes.tolist(), strict=True)
    ]


waits = st.lists(st.tuples(st.integers(0, BLOCKS - 1), st.floats(0.001, 9.9)), min_size=1, max_size=60)


@given(waits, st.floats(0.002, 9.0), st.floats(0.01, 0.99))
def test_with_one_timeout_the_rate_is_the_share_that_lasts_longer(
    operations: list[tuple[int, float]], timeout: float, timeout_rate: float
) -> None:
    watched = [(block, min(wait, timeout), wait <= timeout) for block, wait in operations]
    answer = estimate(ends(watched), timeout_rate)
    for wait in (0.001, 0.01, 0.1, 1.0, timeout):
        if place(wait) < len(answer.rates):
            longer = sum(
                place(each) > place(wait) or not left for _, each, left in watched if place(each) >= place(wait)
            )
            assert answer.at(wait)[0] == pytest.approx(longer / len(watched))
    assert (np.diff(answer.rates) <= 1e-12).all()
    if answer.timeout is not None:
        assert answer.at(answer.timeout)[0] <= timeout_rate


def test_operations_that_end_together_tell_less() -> None:
    one_by_one = estimate(ends(drawn(8.0)), 0.1)
    together = estimate(ends([operation for operation in drawn(8.0, 80) for _ in range(50)]), 0.1)
    assert one_by_one.total == together.total == 4000
    assert one_by_one.effective == pytest.approx(4000, rel=0.6)
    assert together.effective < one_by_one.effective / 10


def test_a_rate_that_is_not_reached() -> None:
    answer = estimate(ends(drawn(2.0)), 0.1)
    assert (answer.reason, answer.timeout, answer.safe, answer.latest) == ("unreached", None, None, None)
    assert answer.rates[-1] == pytest.approx(0.244, abs=0.03)
    assert answer.longest == pytest.approx(2.0, rel=0.03)


@pytest.mark.parametrize(("blocks", "timeout_rate", "timeout"), [(9, 0.3, 0.1), (5, 0.05, 5.0)])
def test_too_few_blocks_have_operations_that_last_so_long(blocks: int, timeout_rate: float, timeout: float) -> None:
    operations = [(block, 0.1, True) for block in range(BLOCKS) for _ in range(100)]
    slow = [(block, 5.0, True) for block in range(blocks) for _ in range(100)]
    answer = estimate(ends(operations + slow), timeout_rate)
    assert (answer.reason, answer.safe) == ("few", None)
    assert answer.timeout == pytest.approx(timeout, rel=0.03)


def test_an_operation_that_all_leave_in_time_needs_no_longer_timeout() -> None:
    answer = estimate(ends(drawn(1e6)), 0.1)
    assert math.isinf(answer.longest)
    assert answer.at(1e7)[0] == 0.0
    assert answer.waits(1e7) == answer.waits(1e6)


def test_a_single_operation() -> None:
    answer = estimate(ends([(0, 0.0, True)]), 0.1)
    assert (answer.total, answer.rates.tolist(), answer.reason) == (1, [0.0], "few")


def test_a_single_block_has_no_band() -> None:
    one = np.zeros((1, 1, len(EDGES)))
    one[0, 0, [place(1.0), place(2.0)]] = 5000
    answer = estimate(Ends(one, one, {"left": one.sum(axis=(0, 1))}, np.zeros(1), are_days=False), 0.6)
    assert (answer.low.max(), answer.high.min()) == (0.0, 1.0)
    assert answer.reason == "few"
