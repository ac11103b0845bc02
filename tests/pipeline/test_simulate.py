"""Simulations of a purgatory: the end of each operation, computed without a purgatory, and on a real loop."""

import asyncio
import math
import random
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import Delay, DelayedOperationPurgatory
from purgatory._core.listeners import FinishedOperation, Outcome
from purgatory.spark.errors import PipelineError
from purgatory.spark.simulate import OUTCOMES, Configuration, Ended, Simulation, simulate
from tests.pipeline.arrivals import Arrival, columns

# Times in quarters of a millisecond, so that all kinds of ties come up, and ticks that they do and do not fit into.
_TIMES = st.integers(0, 200).map(lambda quarters: quarters * 0.00025)


@st.composite
def _traces(draw: st.DrawFn) -> list[Arrival]:
    arrivals: list[Arrival] = []
    arrived = 0.0
    for number in range(draw(st.integers(1, 40))):
        arrived += draw(_TIMES)
        ending = draw(st.sampled_from(OUTCOMES))
        timeout = draw(_TIMES if ending == "expired" else st.none() | _TIMES)
        end = {"completed_at_once": 0.0, "expired": math.inf}.get(ending, 0.0)
        if ending in ("satisfied", "closed", "cancelled", "failed"):
            end = draw(_TIMES)
        keys = tuple(draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True)))
        arrivals.append(Arrival(arrived, keys, timeout, end, ending, number))
    return arrivals


_CONFIGURATIONS = st.builds(
    Configuration,
    tick=st.sampled_from([0.00025, 0.001, 0.003, 0.0101]),
    wheel_size=st.integers(2, 20),
    purge_interval=st.integers(0, 20),
    timeout=st.none() | _TIMES,
)


def _naive(arrival: Arrival, configuration: Configuration) -> Ended:
    """The end of `arrival`, without a clock and wheels."""
    if arrival.ending == "completed_at_once":
        timeout = arrival.timeout if configuration.timeout is None else configuration.timeout
        return Ended(arrival.reference, "completed_at_once", timeout, 0.0, None)
    timeout = arrival.timeout if configuration.timeout is None else configuration.timeout
    ends = arrival.arrived + arrival.end
    rings = math.inf
    if timeout is not None:
        rate = 1 / configuration.tick
        tick = int((arrival.arrived + timeout) * rate)
        while tick / rate < arrival.arrived + timeout:
            tick += 1
        rings = max(arrival.arrived, tick / rate)
    if ends < rings:
        return Ended(arrival.reference, arrival.ending, timeout, ends - arrival.arrived, None)
    assert timeout is not None
    return Ended(arrival.reference, "expired", timeout, rings - arrival.arrived, rings - (arrival.arrived + timeout))


def _rounded(ended: Sequence[Ended]) -> list[Ended]:
    """The ends in order, with times to a billionth of a second."""
    return sorted(
        each._replace(waited=round(each.waited, 9), late=None if each.late is None else abs(round(each.late, 9)))
        for each in ended
    )


@given(_traces(), _CONFIGURATIONS)
def test_each_operation_ends_as_its_timeout_and_its_end_say(
    arrivals: list[Arrival], configuration: Configuration
) -> None:
    ended: list[Ended] = []
    simulation = simulate(configuration, columns(arrivals), record=ended.append)
    expected = [_naive(arrival, configuration) for arrival in arrivals]
    assert _rounded(ended) == _rounded(expected)
    counts = simulation.counts
    for outcome in OUTCOMES:
        assert counts[outcome] == sum(each.outcome == outcome for each in expected)
    assert counts["operations"] == len(arrivals)
    assert counts["pending"] == simulation.purgatory.num_delayed == 0
    assert sum(simulation.late) == counts["expired"]


@given(_traces(), _CONFIGURATIONS, st.lists(_TIMES.map(lambda time: time * 20), max_size=4))
def test_a_trace_that_is_cut_in_time_gives_the_same(
    arrivals: list[Arrival], configuration: Configuration, cuts: list[float]
) -> None:
    whole: list[Ended] = []
    one = simulate(configuration, columns(arrivals), record=whole.append)
    ended: list[Ended] = []
    segments: list[Simulation] = []
    edges = [-math.inf, *sorted(set(cuts)), math.inf]
    for start, stop in pairwise(edges):
        known = [
            each
            for each in arrivals
            if each.arrived < stop and each.arrived + _naive(each, configuration).waited + configuration.tick >= start
        ]
        segments.append(simulate(configuration, columns(known), start, stop, ended.append))
    assert sorted(ended) == sorted(whole)
    for name in ("operations", "unknown", "inserts", "pending", *OUTCOMES):
        assert sum(segment.counts[name] for segment in segments) == one.counts[name], name
    assert max(segment.peak_delayed for segment in segments) == one.peak_delayed
    assert [sum(late) for late in zip(*(segment.late for segment in segments), strict=True)] == one.late


def _traffic(count: int, timeout: float = 0.2) -> list[Arrival]:
    """Traffic with the low timeout rate of the redesign proposal."""
    draw = random.Random(7)
    arrived = 0.0
    arrivals = []
    for number in range(count):
        arrived += draw.expovariate(10_000)
        keys = tuple({f"key {draw.randrange(100)}" for _ in range(3)})
        end = draw.lognormvariate(math.log(0.02), 1.6288)
        arrivals.append(Arrival(arrived, keys, timeout, end, "satisfied", number))
    return arrivals


def test_a_cut_costs_hardly_anything_and_saves_nothing() -> None:
    arrivals = _traffic(30_000)
    one = simulate(Configuration(), columns(arrivals))
    segments = [
        simulate(
            Configuration(), columns([each for each in arrivals if start - 0.21 < each.arrived < stop]), start, stop
        )
        for start, stop in ((-math.inf, 1.0), (1.0, 2.0), (2.0, math.inf))
    ]
    for name in ("wake_ups", "buckets", "cascaded", "purges", "scanned", "purged"):
        assert sum(segment.counts[name] for segment in segments) == pytest.approx(one.counts[name], rel=0.05), name
    assert max(segment.peak_dead for segment in segments) == pytest.approx(one.peak_dead, rel=0.1)


def test_the_counts_are_those_of_the_purgatory() -> None:
    simulation = simulate(Configuration(purge_interval=100), columns(_traffic(5_000)))
    said, timer = simulation.purgatory.statistics(), simulation.purgatory.timer.statistics()
    counts = simulation.counts
    assert (counts["satisfied"], counts["expired"]) == (said.satisfied, said.expired)
    assert (counts["purges"], counts["scanned"], counts["purged"]) == (said.purges, said.scanned, said.purged)
    assert (counts["wake_ups"], counts["cascaded"], counts["buckets"]) == (
        timer.wake_ups,
        timer.cascaded,
        timer.buckets,
    )
    assert min(counts[name] for name in ("purges", "scanned", "wake_ups", "cascaded", "buckets")) > 0
    assert 100 < simulation.peak_dead < 100 * 3 + 3 * simulation.peak_delayed


def test_an_operation_whose_end_the_trace_does_not_know_is_counted_as_such() -> None:
    arrivals = [Arrival(n, ("a",), 1.0, math.inf, "expired") for n in range(3)]
    assert simulate(Configuration(timeout=0.5), columns(arrivals)).counts["unknown"] == 0
    assert simulate(Configuration(timeout=1.0), columns(arrivals)).counts["unknown"] == 0
    assert simulate(Configuration(timeout=1.5), columns(arrivals)).counts["unknown"] == 3


def test_the_true_end_of_a_closed_operation_is_unknown_beyond_the_close() -> None:
    ended: list[Ended] = []
    arrivals = [Arrival(n, ("a",), timeout, 0.01, "closed") for n, timeout in enumerate((60.0, None, 0.005))]
    counts = simulate(Configuration(), columns(arrivals), record=ended.append).counts
    assert (counts["closed"], counts["expired"], counts["unknown"], counts["satisfied"]) == (2, 1, 2, 0)
    assert [(each.outcome, round(each.waited, 3)) for each in ended] == [
        ("closed", 0.01),
        ("closed", 0.01),
        ("expired", 0.005),
    ]
    shorter = simulate(Configuration(timeout=0.005), columns(arrivals)).counts
    assert (shorter["closed"], shorter["expired"], shorter["unknown"]) == (0, 3, 0)
    longer = simulate(Configuration(timeout=120.0), columns(arrivals)).counts
    assert (longer["closed"], longer["expired"], longer["unknown"], longer["pending"]) == (3, 0, 3, 0)


def test_an_operation_without_a_deadline_that_never_ends_is_pending_at_the_end() -> None:
    counts = simulate(Configuration(), columns([Arrival(0.0, ("a",), None, math.inf, "satisfied")])).counts
    assert (counts["operations"], counts["pending"], counts["satisfied"]) == (1, 1, 0)


@given(_traces(), _CONFIGURATIONS, st.integers(1, 40))
def test_operations_may_come_in_lots_of_any_size(
    arrivals: list[Arrival], configuration: Configuration, size: int
) -> None:
    whole: list[Ended] = []
    one = simulate(configuration, columns(arrivals), record=whole.append)
    ended: list[Ended] = []
    other = Simulation(configuration, record=ended.append)
    rows = columns(arrivals)
    for start in range(0, len(arrivals), size):
        other.play(rows.part(start, start + size))
    other.finish()
    assert ended == whole
    assert (other.counts, other.late, other.late_max) == (one.counts, one.late, one.late_max)
    assert (other.peak_delayed, other.peak_dead) == (one.peak_delayed, one.peak_dead)
    assert other.waited == pytest.approx(one.waited) == pytest.approx(sum(each.waited for each in whole))


def test_the_memory_kept_does_not_grow_with_the_trace() -> None:
    # Each operation would take an hour, and expires after a millisecond.
    rows = columns([Arrival(n * 0.01, ("a",), 0.001, 3600.0, "satisfied") for n in range(5000)])
    simulation = Simulation(Configuration())
    for start in range(0, 5000, 100):
        simulation.play(rows.part(start, start + 100))
        assert len(simulation._held) <= 1
    simulation.finish()
    assert simulation.counts["expired"] == 5000


async def test_a_live_program_has_the_same_outcomes() -> None:
    """Only the loop's lag may differ: no operation ends within 80 ms of its deadline."""
    draw = random.Random(3)
    arrivals = []
    for number in range(300):
        takes = draw.choice([0.02, 0.05, 0.3, 0.4]) + draw.random() * 0.02
        ending: Outcome = draw.choice(["satisfied", "cancelled", "expired"])
        takes = math.inf if ending == "expired" else takes
        arrivals.append(Arrival(number * 0.003, (str(number),), 0.15, takes, ending, str(number)))
    virtual: list[Ended] = []
    simulate(Configuration(tick=0.005), columns(arrivals), record=virtual.append)

    loop = asyncio.get_running_loop()
    began = loop.time()
    live: dict[Hashable, FinishedOperation] = {}
    lag = 0.0

    async def until(when: float) -> None:
        nonlocal lag
        await asyncio.sleep(began + when - loop.time())
        lag = max(lag, loop.time() - began - when)

    async def end(arrival: Arrival, operation: Delay) -> None:
        await until(arrival.arrived + arrival.end)
        if arrival.ending == "cancelled":
            operation.cancel()
        else:
            operation.force_complete()

    async with DelayedOperationPurgatory(tick=0.005) as purgatory:
        purgatory.add_listener(lambda finished: live.__setitem__(finished.keys[0], finished))
        operations = []
        async with asyncio.TaskGroup() as tasks:
            for arrival in arrivals:
                await until(arrival.arrived)
                operation = purgatory.try_complete_else_watch(Delay(0.15), arrival.keys)
                operations.append(operation)
                if arrival.end < math.inf:
                    tasks.create_task(end(arrival, operation))
        await asyncio.gather(*operations, return_exceptions=True)
    assert sum(each.outcome == "expired" for each in virtual) > 50
    for arrival, other in zip(arrivals, sorted(virtual, key=lambda each: int(str(each.reference))), strict=True):
        one = live[arrival.keys[0]]
        if abs(arrival.end - 0.15) > lag + 0.005:
            assert one.outcome == other.outcome
            if one.outcome == "expired":
                assert one.waited > 0.15 - 1e-6, "however late, but for what a float rounds"
            else:
                assert abs(one.waited - other.waited) <= 2 * lag


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"tick": 0.0}, "tick"),
        ({"tick": math.nan}, "tick"),
        ({"wheel_size": 1}, "wheel_size"),
        ({"purge_interval": -1}, "purge_interval"),
        ({"timeout": -1.0}, "timeout"),
        ({"timeout": math.inf}, "timeout"),
        ({"timeout": "soon"}, "timeout"),
    ],
)
def test_an_impossible_configuration_is_refused_by_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(PipelineError, match=named):
        replace(Configuration(), **values)


def test_a_simulation_reports_nothing_to_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    simulation = simulate(Configuration(), columns([Arrival(0.0, ("a",), 1.0, 0.5, "failed")]))
    assert simulation.counts["failed"] == 1
    assert not caplog.records
