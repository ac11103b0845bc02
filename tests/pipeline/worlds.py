"""Worlds of known truth, and how well the pipeline knows them: `python -m tests.pipeline.worlds [--seeds 60]`.

A world draws the journal of a service for a seed. The share of operations that last longer than a timeout is known for
every timeout, so it can be told whether a band has the truth, and whether the advice keeps what it promises.
"""

import argparse
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession

from purgatory.journal import SCHEMA
from purgatory.pipeline import answers, trace
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
}


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


def found(spark: SparkSession, journals: Iterable[pa.Table], timeout_rate: float) -> dict[str, list[Estimate]]:
    """The estimates from journals, which have the column `instance`, by the name of their world."""
    journal = pa.concat_tables(journals)
    journal = spark.createDataFrame(journal.append_column("file", pa.repeat("a world", len(journal))))
    rows = answers.rows_of(trace.cube(journal, SLOT).toArrow())
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
    estimates = found(spark, [rows(name, seed) for name in WORLDS for seed in range(seeds)], timeout_rate)
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
    sys.stdout.write("".join(f"| {' | '.join(line)} |\n" for line in lines))


if __name__ == "__main__":
    _main()
