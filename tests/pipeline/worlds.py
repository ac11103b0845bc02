"""Worlds of known truth, and how well the pipeline knows them: `python -m tests.pipeline.worlds [--seeds 60]`.

A world draws the journal of a service for a seed. The share of operations that last longer than a timeout is known for
every timeout, so it can be told whether a band has the truth, and whether the advice keeps what it promises.
"""

import argparse
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from purgatory.journal import SCHEMA
from purgatory.pipeline import again, answers, trace
from purgatory.pipeline.cube import joined
from purgatory.pipeline.estimate import Estimate
from purgatory.spark.session import session

Floats: TypeAlias = npt.NDArray[np.float64]
Random: TypeAlias = np.random.Generator

SECONDS: Final = 2000.0
"""How long the traffic of a world lasts."""
COUNT: Final = 2000
TIMEOUT: Final = 8.0
START: Final = 1_760_000_000
SLOT: Final = 20
_AT_ONCE: Final = 200
"""Journals of which a cube is made at once, in the memory of one process."""
LAST: Final = "last"
"""An operation that ends long after all others."""


class Life(NamedTuple):
    """Operations, column by column, in seconds."""

    arrived: Floats
    takes: Floats
    timeout: Floats
    leaves: Floats
    """When the client goes away; infinite, if it does not."""


World: TypeAlias = Callable[[Random], Life]


def _world(
    takes: Callable[[Random], Floats],
    timeout: Callable[[Random, Floats], Floats] = lambda random, takes: np.full(len(takes), TIMEOUT),
    leaves: Callable[[Random, Floats], Floats] = lambda random, takes: np.full(len(takes), math.inf),
    together: int = 1,
) -> World:
    """A world in which `together` operations arrive and end at once."""

    def draw(random: Random) -> Life:
        drawn = takes(random)
        arrived = np.sort(random.uniform(0.0, SECONDS, len(drawn)))
        lasting = np.repeat(drawn, together)
        return Life(np.repeat(arrived, together), lasting, timeout(random, lasting), leaves(random, lasting))

    return draw


def _lognormal(random: Random) -> Floats:
    return random.lognormal(0.0, 1.0, COUNT)


def _mixture(random: Random, share: float, short: float, long: float, sigma: float) -> Floats:
    medians = np.where(random.random(COUNT) < share, short, long)
    return medians * random.lognormal(0.0, sigma, COUNT)


def _impatient(random: Random, takes: Floats) -> Floats:
    """Half of all clients leave sooner or later than they would be answered, and by no more than half of that time."""
    return np.where(random.random(len(takes)) < 0.5, takes * random.uniform(0.5, 1.5, len(takes)), math.inf)


def _incident(random: Random) -> Life:
    """During 5 % of the time all take eight times as long."""
    life = _world(_lognormal)(random)
    begin = random.uniform(0.0, 0.95 * SECONDS)
    slow = (life.arrived >= begin) & (life.arrived < begin + 0.05 * SECONDS)
    return life._replace(takes=np.where(slow, 8.0, 1.0) * life.takes)


def _waves(random: Random, correlated: float, seconds: float, count: int, season: float = 0.0) -> Life:
    """All are quick for some time and then slow, correlated over so many seconds, and by the hour of the day."""
    steps = 400
    kept = math.exp(-seconds / steps / correlated)
    level = np.empty(steps)
    level[0] = random.normal()
    for number in range(1, steps):
        level[number] = kept * level[number - 1] + math.sqrt(1 - kept**2) * random.normal()
    arrived = np.sort(random.uniform(0.0, seconds, count))
    slow = 0.4 * level[(arrived * steps / seconds).astype(int)] + season * np.sin(2 * math.pi * arrived / 86_400)
    takes = np.exp(slow + 0.6 * random.normal(size=count))
    return Life(arrived, takes, np.full(count, TIMEOUT), np.full(count, math.inf))


def _slow_hour(random: Random) -> Life:
    """A day with one hour in which all take ten times as long."""
    arrived = np.sort(random.uniform(0.0, 86_400.0, 4 * COUNT))
    takes = random.lognormal(0.0, 0.6, len(arrived)) * np.where((arrived > 36_000) & (arrived < 39_600), 10.0, 1.0)
    return Life(arrived, takes, np.full(len(arrived), 4 * TIMEOUT), np.full(len(arrived), math.inf))


WORLDS: Final[Mapping[str, World]] = {
    "log-normal": _world(_lognormal),
    "exponential": _world(lambda random: random.exponential(2.0, COUNT)),
    "bimodal": _world(lambda random: _mixture(random, 0.8, 0.2, 5.0, 0.5)),
    "Pareto": _world(lambda random: 0.5 * random.random(COUNT) ** (-1 / 1.5)),
    "timeouts of 1, 3 and 10 s": _world(_lognormal, lambda random, takes: random.choice([1.0, 3.0, 10.0], len(takes))),
    "timeouts that follow the work": _world(
        lambda random: _mixture(random, 0.7, 0.3, 4.0, 0.6), lambda random, takes: np.where(takes > 1.2, 20.0, 2.0)
    ),
    "50 waiters a key": _world(lambda random: random.lognormal(0.0, 1.0, COUNT // 2), together=50),
    "5 waiters a key": _world(lambda random: random.lognormal(0.0, 1.0, COUNT // 2), together=5),
    "impatient clients": _world(_lognormal, leaves=lambda random, takes: random.exponential(6.0, len(takes))),
    "impatient clients, by their wait": _world(_lognormal, leaves=_impatient),
    "an incident": _incident,
    "short waves": lambda random: _waves(random, 5.0, SECONDS, 2 * COUNT),
    "long waves": lambda random: _waves(random, 120.0, SECONDS, 2 * COUNT),
    "a day with its season": lambda random: _waves(random, 60.0, 86_400.0, 4 * COUNT, 0.4),
    "a slow hour of a day": _slow_hour,
}


class Loop(NamedTuple):
    """Clients that ask again, and the events that they wait for."""

    waits: Callable[[Random], Floats]
    """Draws how long a client waits for each of the events that come one after the other."""
    gap: float = 0.0
    """Seconds from an empty answer to the next request."""
    think: float = 0.0
    """Seconds from an event to the next request."""


LOOPS: Final[Mapping[str, Loop]] = {
    "memoryless": Loop(lambda random: random.exponential(25.0, 400)),
    "regular, 47 s": Loop(lambda random: np.full(200, 47.0) - 46 * random.random() * (np.arange(200) == 0)),
    "log-normal": Loop(lambda random: random.lognormal(2.5, 1.5, 2000)),
    "bursts": Loop(lambda random: random.exponential(np.where(random.random(4000) < 0.8, 0.5, 120.0))),
    "think 5 s after a result": Loop(lambda random: random.exponential(25.0, 400), think=5.0),
    "ask again after 1 s": Loop(lambda random: random.exponential(25.0, 400), gap=1.0),
}
LOOP_TIMEOUT: Final = 20.0
LOOP_SECONDS: Final = 6000.0
CLIENTS: Final = 60
RUNGS: Final = (0.5, 5.0, 10.0, 50.0)
"""Timeouts whose empty answers are compared with the truth."""


def polls(name: str, seed: int, timeout: float) -> tuple[Floats, Floats, npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """When the clients of a loop ask, how long that waits, whether it expires, and the key."""
    loop, random = LOOPS[name], np.random.default_rng(seed)
    columns: list[tuple[Floats, Floats, npt.NDArray[np.bool_], npt.NDArray[np.int64]]] = []
    for client in range(CLIENTS):
        waits = loop.waits(random)
        begins = np.concatenate(([0.0], (waits + loop.think).cumsum()[:-1]))
        # The event answers the first request that waits until then, or at once the one that comes after it.
        empty = np.maximum(0, np.floor((waits - timeout) / (timeout + loop.gap)) + 1).astype(int)
        which = np.repeat(np.arange(len(waits)), empty + 1)
        number = np.arange(len(which)) - np.repeat((empty + 1).cumsum() - empty - 1, empty + 1)
        arrived = begins[which] + number * (timeout + loop.gap)
        expired = number < empty[which]
        waited = np.where(expired, timeout, np.maximum(waits[which] - number * (timeout + loop.gap), 0.0))
        lasting = arrived + waited < LOOP_SECONDS
        columns.append((arrived[lasting], waited[lasting], expired[lasting], np.full(int(lasting.sum()), client % 6)))
    arrived, waited, expired, key = (np.concatenate(each) for each in zip(*columns, strict=True))
    return arrived, waited, expired, key


def journal_of_polls(name: str, seed: int) -> pa.Table:
    """The journal of a loop with the timeout in use."""
    arrived, waited, expired, key = polls(name, seed, LOOP_TIMEOUT)
    count = len(arrived)
    opened = pa.scalar(START * 1_000_000, pa.timestamp("us", "UTC"))
    columns = [
        pa.repeat(f"loop: {name}", count),
        pa.repeat(str(seed), count),
        pa.array([[f"key-{each}"] for each in key.tolist()], SCHEMA.field("keys").type),
        pa.array((START * 1e6 + arrived * 1e6).astype(np.int64)).cast(opened.type),
        pa.repeat(LOOP_TIMEOUT, count),
        pa.repeat(LOOP_TIMEOUT, count),
        pa.array(waited),
        pa.array(np.where(expired, "expired", "satisfied").tolist(), pa.string()),
        pa.array(np.zeros(count), mask=~expired),
        pa.repeat(opened, count),
        pa.repeat(False, count),
    ]
    return pa.table(columns, schema=SCHEMA).append_column("instance", pa.repeat(f"loop {name} {seed}", count))


class LoopScore(NamedTuple):
    """How often the pipeline was right about clients that ask again."""

    recognised: int
    covered: int
    """Bounds of empty answers that have the truth, of those for `timeouts`, within 3 %."""
    rungs: int


def loop_scores(spark: SparkSession, seeds: int, timeouts: Sequence[float]) -> dict[str, LoopScore]:
    """The scores of all loops, for what the ladder says of these timeouts."""
    result = {}
    for name in LOOPS:
        journal = pa.concat_tables([journal_of_polls(name, seed) for seed in range(seeds)])
        table = _cube(spark, journal, 100)
        rows = answers.rows_of(table)
        recognised = covered = rungs = 0
        for seed in range(seeds):
            kind = f"loop: {name}", str(seed)
            some = rows[(rows["purgatory"] == kind[0]) & (rows["operation"] == kind[1])]
            follow = again.follows(table, some, kind)
            if follow is None or follow.world != "ask-again":
                continue
            recognised += 1
            for rung in again.ladder(some, follow.gap, follow.varies):
                if rung.timeout in timeouts:
                    truth = float(polls(name, seed, rung.timeout)[2].sum()) / LOOP_SECONDS
                    rungs += 1
                    covered += rung.empty_low * 0.97 - 0.01 <= truth <= rung.empty_high * 1.03 + 0.01
        result[name] = LoopScore(recognised, covered, rungs)
    return result


def rows(name: str, seed: int) -> pa.Table:
    """The journal of a world, which was closed when all had ended."""
    life = WORLDS[name](np.random.default_rng(seed))
    waited = np.minimum(np.minimum(life.takes, life.leaves), life.timeout)
    outcome = np.select([life.timeout <= waited, life.leaves <= waited], ["expired", "cancelled"], "satisfied")
    count = len(waited)
    opened = pa.scalar(START * 1_000_000, pa.timestamp("us", "UTC"))
    columns = [
        pa.repeat(name, count),
        pa.repeat(str(seed), count),
        pa.repeat(pa.scalar(["key"], SCHEMA.field("keys").type), count),
        pa.array((START * 1e6 + life.arrived * 1e6).astype(np.int64)).cast(opened.type),
        pa.array(life.timeout),
        pa.array(life.timeout),
        pa.array(waited),
        pa.array(outcome.tolist(), pa.string()),
        pa.array(np.zeros(count), mask=outcome != "expired"),
        pa.repeat(opened, count),
        pa.repeat(False, count),
    ]
    # The process lives on: all that arrived has a row.
    last = dict.fromkeys(SCHEMA.names) | {"purgatory": name, "operation": LAST, "keys": ["key"], "missed": False}
    last |= {"arrived_at": opened.as_py(), "waited_s": 2 * SECONDS, "outcome": "satisfied", "opened_at": opened.as_py()}
    table = pa.concat_tables([pa.table(columns, schema=SCHEMA), pa.Table.from_pylist([last], SCHEMA)])
    return table.append_column("instance", pa.repeat(f"{name} {seed}", len(table)))


def _cube(spark: SparkSession, journal: pa.Table, slot: int) -> pa.Table:
    """The cube of a journal, which is read from a file, because millions of rows do not fit in Spark's memory."""
    with TemporaryDirectory() as directory:
        pq.write_table(journal.append_column("file", pa.repeat("a world", len(journal))), f"{directory}/a.parquet")
        return joined([trace.cube(spark.read.parquet(directory), slot)])


def found(spark: SparkSession, journals: Iterable[pa.Table], timeout_rate: float) -> dict[str, list[Estimate]]:
    """The estimates from journals, which have the column `instance`, by the name of their world."""
    rows = answers.rows_of(_cube(spark, pa.concat_tables(journals), SLOT))
    estimates = defaultdict(list)
    for (world, operation), estimate in answers.estimates(rows, timeout_rate).items():
        if estimate is not None and operation != LAST:
            estimates[world].append(estimate)
    return estimates


class Score(NamedTuple):
    """How often the pipeline was right about a world."""

    truth: float
    """The shortest timeout with which no more than the requested share expires."""
    covered: int
    """Bands that have the truth."""
    kept: int
    """Advised timeouts that keep the requested share."""
    refusals: Counter[str]
    advised: list[float]


def scored(truth: float, estimates: Sequence[Estimate]) -> Score:
    """The score of estimates of a world with this truth."""
    known = [each for each in estimates if each.reason is None]
    covered = sum((each.earliest or 0.0) <= truth <= (each.latest or math.inf) for each in known)
    advised = [each.safe for each in known if each.safe is not None]
    assert len(advised) == len(known)
    refusals = Counter(each.reason for each in estimates if each.reason is not None)
    return Score(truth, covered, sum(safe >= truth for safe in advised), refusals, advised)


def scores(spark: SparkSession, seeds: int, timeout_rate: float) -> dict[str, Score]:
    """The scores of all worlds, from journals of so many seeds each."""
    estimates: dict[str, list[Estimate]] = {}
    at_once = max(1, _AT_ONCE // seeds)
    for first in range(0, len(WORLDS), at_once):
        names = list(WORLDS)[first : first + at_once]
        estimates |= found(spark, [rows(name, seed) for name in names for seed in range(seeds)], timeout_rate)
    result = {}
    for name, world in WORLDS.items():
        lives = [world(np.random.default_rng(1_000_000 + number)) for number in range(300)]
        lasting = np.concatenate([np.minimum(life.takes, life.leaves) for life in lives])
        result[name] = scored(float(np.quantile(lasting, 1 - timeout_rate)), estimates[name])
    return result


def _main() -> None:
    parser = argparse.ArgumentParser(description="How well the pipeline knows worlds of known truth.")
    parser.add_argument("--seeds", type=int, default=60, help="journals of each world (default: 60)")
    parser.add_argument("--rate", type=float, default=0.1, help="the share that may expire (default: 0.1)")
    options = parser.parse_args()
    columns = ("world", "timeout in truth", "the band has it", "the advice keeps the rate", "refused", "advised")
    lines = [columns, ["---"] * len(columns)]
    with session() as spark:
        for name, score in scores(spark, options.seeds, options.rate).items():
            rights = [f"{right} of {len(score.advised)}" for right in (score.covered, score.kept)]
            refused = ", ".join(f"{count} {reason}" for reason, count in score.refusals.items()) or "0"
            advised = f"{np.median(score.advised):.2f} s" if score.advised else "none"
            lines.append([name, f"{score.truth:.2f} s", *rights, refused, advised])
        lines += [[], ("clients that ask again", "recognised", "the bounds have the truth"), ["---"] * 3]
        for name, loop in loop_scores(spark, options.seeds, RUNGS).items():
            lines.append([name, f"{loop.recognised} of {options.seeds}", f"{loop.covered} of {loop.rungs}"])
    sys.stdout.write("".join(f"| {' | '.join(line)} |\n" if line else "\n" for line in lines))


if __name__ == "__main__":
    _main()
