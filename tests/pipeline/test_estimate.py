"""The statistics, without Spark."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.pipeline.estimate import BLOCKS, EDGES, LOWEST, Ends, Estimate, estimate


def place(seconds: float) -> int:
    """The bin of a time."""
    return math.ceil(100 * math.log10(max(seconds, 1e-6)) - 1e-7) - LOWEST


def ends(*strata: Sequence[tuple[int, float, bool]]) -> Ends:
    """Ends of operations: the block, the wait in seconds, and whether it has left before its deadline."""
    seen = np.zeros((len(strata), BLOCKS, len(EDGES)))
    gone = np.zeros_like(seen)
    for number, operations in enumerate(strata):
        for block, wait, is_gone in operations:
            seen[number, block, place(wait)] += 1
            gone[number, block, place(wait)] += is_gone
    return Ends(gone, seen)


def drawn(timeout: float, count: int = 4000, median: float = 1.0, seed: int = 0) -> list[tuple[int, float, bool]]:
    """Operations whose times are log-normal."""
    random = np.random.default_rng(seed)
    takes = random.lognormal(math.log(median), 1.0, count)
    return [
        (int(block), min(take, timeout), take <= timeout)
        for block, take in zip(random.integers(0, BLOCKS, count), takes.tolist(), strict=True)
    ]


waits = st.lists(st.tuples(st.integers(0, BLOCKS - 1), st.floats(0.001, 9.9), st.just(True)), min_size=1, max_size=60)


@given(waits, st.floats(0.002, 9.0), st.floats(0.01, 0.99))
def test_with_one_timeout_the_rate_is_the_share_that_lasts_longer(
    operations: list[tuple[int, float, bool]], timeout: float, wanted: float
) -> None:
    watched = [(block, min(wait, timeout), wait <= timeout) for block, wait, _ in operations]
    answer = estimate(ends(watched), wanted)
    for wait in (0.001, 0.01, 0.1, 1.0, timeout):
        if place(wait) < len(answer.rates):
            longer = sum(
                place(each) > place(wait) or not left for _, each, left in watched if place(each) >= place(wait)
            )
            assert answer.at(wait)[0] == pytest.approx(longer / len(watched))
    rates = answer.rates
    assert (np.diff(rates) <= 1e-12).all()
    assert (answer.low <= rates + 1e-9).all() or BLOCKS
    if answer.timeout is not None:
        assert answer.at(answer.timeout)[0] <= wanted


def test_the_advice_is_within_the_band_and_beyond_the_estimate() -> None:
    answer = estimate(ends(drawn(8.0)), 0.1)
    assert answer.reason is None
    assert answer.earliest is not None
    assert answer.timeout is not None
    assert answer.safe is not None
    assert answer.latest is not None
    assert answer.earliest < answer.timeout < answer.safe < answer.latest
    assert answer.earliest < math.exp(1.2816) < answer.latest
    assert answer.total == 4000
    assert answer.effective == pytest.approx(4000, rel=0.6)


def test_operations_that_end_together_tell_less() -> None:
    one_by_one = estimate(ends(drawn(8.0)), 0.1)
    random = np.random.default_rng(1)
    groups = [(block, wait, left) for block, wait, left in drawn(8.0, 80) for _ in range(50)]
    together = estimate(ends(groups), 0.1)
    assert random is not None
    assert together.total == one_by_one.total
    assert together.effective < one_by_one.effective / 10


def test_timeouts_of_operations_that_end_alike_are_pooled() -> None:
    """Of those with a timeout of a second nothing is known beyond it, and it is not needed."""
    answer = estimate(ends(drawn(1.0, seed=1), drawn(8.0, seed=2)), 0.1)
    assert answer.reason is None
    assert answer.earliest is not None
    assert answer.latest is not None
    assert answer.earliest < math.exp(1.2816) < answer.latest


def test_timeouts_that_follow_the_work_give_bounds() -> None:
    short, long = drawn(2.0, 7000, 0.3, 1), drawn(20.0, 3000, 4.0, 2)
    answer = estimate(ends(short, long), 0.2)
    assert answer.reason is None
    assert answer.safe is not None
    truth = np.concatenate(
        [np.random.default_rng(3).lognormal(math.log(m), 1.0, n) for m, n in ((0.3, 70_000), (4.0, 30_000))]
    )
    assert np.mean(truth > answer.safe) <= 0.2
    # A rate that is met, if at all, beyond the timeout of the short ones.
    answer = estimate(ends(short, long), 0.03)
    assert (answer.reason, answer.safe) == ("strata", None)


def test_a_rate_that_is_not_reached() -> None:
    answer = estimate(ends(drawn(2.0)), 0.1)
    assert (answer.reason, answer.timeout, answer.safe, answer.latest) == ("unreached", None, None, None)
    assert answer.rates[-1] == pytest.approx(0.244, abs=0.03)
    assert answer.longest == pytest.approx(2.0, rel=0.03)


def test_too_few_blocks_have_operations_that_last_so_long() -> None:
    operations = [(block, 0.1, True) for block in range(BLOCKS) for _ in range(100)]
    slow = [(block, 5.0, True) for block in range(9) for _ in range(100)]
    answer = estimate(ends(operations + slow), 0.3)
    assert answer.timeout == pytest.approx(0.1, rel=0.03)
    assert answer.reason is None or answer.reason == "few"
    answer = estimate(ends(operations + slow[:500]), 0.05)
    assert (answer.reason, answer.safe) == ("few", None)


def test_an_operation_that_all_leave_in_time_needs_no_longer_timeout() -> None:
    answer = estimate(ends(drawn(1e6)), 0.1)
    assert math.isinf(answer.longest)
    assert answer.at(1e7)[0] == 0.0
    assert answer.waits(1e7) == answer.waits(1e6)


@pytest.mark.parametrize("timeout", [0.5, 2.0, 8.0])
def test_the_mean_wait_is_that_of_operations_that_are_cut_off(timeout: float) -> None:
    answer = estimate(ends(drawn(8.0)), 0.1)
    takes = np.random.default_rng(7).lognormal(0.0, 1.0, 100_000)
    assert answer.waits(timeout) == pytest.approx(np.minimum(takes, timeout).mean(), rel=0.05)


def test_a_single_operation() -> None:
    answer: Estimate = estimate(ends([(0, 0.0, True)]), 0.1)
    assert answer.total == 1
    assert answer.rates.tolist() == [0.0]
    assert answer.reason == "few"
