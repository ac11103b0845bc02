"""Which share of answers clients follow with a request, without Spark, in worlds whose truth is known."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pytest

from purgatory.pipeline.again import Follow, follows

Floats: TypeAlias = npt.NDArray[np.float64]
Random: TypeAlias = np.random.Generator

TIMEOUT = 20.0
SECONDS = 1200.0
KIND = ("news", "Poll")


Cube: TypeAlias = tuple[pa.Table, Any]


def cube(arrived: Floats, waited: Floats, expired: npt.NDArray[np.bool_], key: npt.NDArray[np.int64]) -> Cube:
    """The moments of a cube of these operations, and the rows that count them."""
    begin, end = (arrived * 4).astype(int), ((arrived + waited) * 4).astype(int)
    common = {"hash": key, "part": "moments", "purgatory": KIND[0], "operation": KIND[1]}
    came = {"arrived": 250_000 * begin, "operations": 1, "num_expired": 0, "num_others": 0}
    went = {"arrived": 250_000 * end, "operations": 0}
    went |= {"num_expired": expired.astype(int), "num_others": (~expired).astype(int)}
    sample = pd.DataFrame([{"part": "samples", "purgatory": KIND[0], "hash": 4095}])
    bins = np.ceil(100 * np.log10(np.maximum(waited, 1e-6)) - 1e-7).astype(int)
    counted = pd.DataFrame({"outcome": np.where(expired, "expired", "satisfied"), "wait_bin": bins, "operations": 1})
    rows = counted.groupby(["outcome", "wait_bin"])["operations"].sum().reset_index()
    table = pa.Table.from_pandas(pd.concat([pd.DataFrame(common | came), pd.DataFrame(common | went), sample]))
    return table, rows


def leave(
    random: Random, median: float = 10.0, keys: int = 30, timeout: float = TIMEOUT, arrive: str = "evenly"
) -> Cube:
    """Clients who leave after an answer."""
    count = 24_000
    arrived = random.uniform(0, SECONDS, count)
    key = (random.zipf(1.5, count) - 1) % keys
    if arrive == "in bursts":
        arrived = np.where(
            random.random(count) < 0.7, 150 * random.integers(0, 8, count) + random.uniform(0, 30, count), arrived
        )
    if arrive == "in cohorts":
        cohort = random.integers(0, 400, count)
        arrived = random.uniform(0, SECONDS, 400)[cohort] + random.exponential(0.1, count)
        key = cohort % keys
    if arrive == "by cron":
        arrived = TIMEOUT * random.integers(0, 60, count) + 0.5 * key + random.normal(0, 0.05, count)
    arrived = np.maximum(arrived, 0)
    takes = median * random.lognormal(0.0, 1.0, count)
    return cube(arrived, np.minimum(takes, timeout), takes > timeout, key)


def again(
    random: Random,
    median: float = 10.0,
    keys: int = 30,
    timeout: float = TIMEOUT,
    gap: float = 0.02,
    share: float = 1.0,
) -> Cube:
    """Clients who ask again after an answer, all or a share of them."""
    rows: list[tuple[float, float, bool, int]] = []
    for client in range(200):
        at = float(random.uniform(0, timeout))
        while at < SECONDS:
            takes = median * float(random.lognormal(0.0, 1.0))
            rows.append((at, min(takes, timeout), takes > timeout, client % keys))
            at += min(takes, timeout) + float(random.exponential(gap if random.random() < share else 60.0))
    arrived, waited, expired, key = (np.array(column) for column in zip(*rows, strict=True))
    return cube(arrived, waited, expired, key)


LEAVE: dict[str, dict[str, Any]] = {
    "evenly": {},
    "evenly, one key": {"keys": 1},
    "short waits": {"median": 0.3},
    "short timeouts": {"median": 3.0, "timeout": 2.0},
    "in bursts": {"arrive": "in bursts"},
    "in cohorts": {"arrive": "in cohorts"},
    "by cron": {"arrive": "by cron"},
}
AGAIN: dict[str, dict[str, Any]] = {
    "at once": {},
    "at once, one key": {"keys": 1},
    "short waits": {"median": 0.3},
    "short timeouts": {"median": 3.0, "timeout": 2.0},
    "nothing expires": {"median": 1.0},
    "after 300 ms": {"gap": 0.3},
    "after 1.5 s": {"gap": 1.5},
}
SURE = {"evenly", "short waits", "short timeouts", "at once", "nothing expires", "after 300 ms"}
"""Worlds that the moments always tell."""


def found(make: Callable[..., Cube], options: dict[str, Any]) -> list[Follow]:
    return [follow for seed in range(4) if (follow := follows(*make(np.random.default_rng(seed), **options), KIND))]


@pytest.mark.parametrize("name", LEAVE)
def test_clients_that_leave_are_never_taken_for_others(name: str) -> None:
    worlds = [each.world for each in found(leave, LEAVE[name])]
    assert "ask-again" not in worlds
    if name in SURE:
        assert set(worlds) == {"leave"}


@pytest.mark.parametrize("name", AGAIN)
def test_clients_that_ask_again_are_never_taken_for_others(name: str) -> None:
    follow = found(again, AGAIN[name])
    worlds = [each.world for each in follow]
    assert "leave" not in worlds
    if name in SURE:
        assert set(worlds) == {"ask-again"}
        assert [each.gap for each in follow] == pytest.approx([AGAIN[name].get("gap", 0.02)] * 4, abs=0.12)


def test_clients_of_whom_half_ask_again_are_neither() -> None:
    follow = found(again, {"share": 0.5})
    assert {each.world for each in follow} == {"unknown"}
    assert all(0.35 < each.share < 0.75 for each in follow)


def test_gaps_that_are_drawn_vary_and_constant_ones_do_not() -> None:
    assert all(each.varies for each in found(again, {"gap": 1.5}))
    assert not any(each.varies for each in found(again, {}))


def test_a_few_operations_tell_nothing() -> None:
    few = cube(np.arange(10.0), np.ones(10), np.zeros(10, bool), np.zeros(10, int))
    assert follows(*few, KIND) is None
    assert follows(*few, ("news", "Other")) is None
