"""Traffic at any scale, made on Spark and written as a trace.

The model is that of the benchmark of Kafka's purgatory redesign proposal: operations arrive at exponential intervals,
and would take a log-normal time to complete, given by its 50th and 75th percentile, if no timeout came first. To that
come the troubles of real services: an instance that is slow, clients that go away, checks that were forgotten, and
changes that wake many watchers at once.

Time is cut into slices, and each slice of each instance is drawn on its own, from a random generator that is seeded by
(seed, instance, slice): so the traffic does not depend on how Spark divides the work. Arrivals are a Poisson process
anyway: the number in a slice is Poisson distributed, and given their number, they are uniform in it, which is
the same as exponential intervals from one to the next, across slices too.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from purgatory.pipeline.trace import COLUMNS
from purgatory.spark.errors import PipelineError
from purgatory.spark.session import parallelism

_YEAR: Final = 366 * 86_400

_MOST: Final = 1e13
"""The most operations: days of a very large service."""

_SLICE: Final = 50_000
"""The average number of operations of a slice: some megabytes, and some hundredths of a second of work."""

_TICK: Final = 0.001
"""The most seconds from a deadline to the last try."""

_BATCH: Final = 10_000
"""Rows handed to Spark in one go."""

Floats: TypeAlias = npt.NDArray[np.float64]

_ARRIVED_AT: Final = pa.timestamp("us", tz="UTC")


def _field(default: Any, about: str, lowest: float = 0, highest: float = 0) -> Any:
    """A field of `Traffic`, with its description, and the limits of a number."""
    return field(default=default, metadata={"about": about, "limits": (lowest, highest)})


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic of each instance of a service. The command has an option for each field."""

    rate: float = _field(10_000.0, "operations that arrive at each instance, per second", 1e-6, 1e9)
    seconds: float = _field(60.0, "duration of the traffic, in seconds", 1e-3, _YEAR)
    instances: int = _field(1, "number of instances", 1, 100_000)
    median: float = _field(0.020, "50th percentile of the time to complete, in seconds", 1e-6, _YEAR)
    upper_quartile: float = _field(0.060, "75th percentile of the time to complete, in seconds", 1e-6, _YEAR)
    timeout: float = _field(1.0, "timeout of each operation, in seconds", 0, _YEAR)
    keys: int = _field(100, "number of keys", 1, 10_000_000)
    keys_per_operation: int = _field(
        3, "number of keys that an operation draws; it watches a key that it draws twice once", 1, 100
    )
    zipf: float = _field(0.0, "exponent of the keys' distribution: 0 is uniform, 1 is Zipf's law", 0, 10)
    slowest: float = _field(1.0, "how many times as long operations of the last instance take", 1, 1e6)
    together: int = _field(1, "number of operations, one after the other, that wait for the same change", 1, 10_000)
    cancelled: float = _field(0.0, "share of operations that clients cancel", 0, 1)
    missed: float = _field(0.0, "share of operations whose check is forgotten", 0, 1)
    seed: int = _field(0, "seed of the random generators; the same seed gives the same operations", 0, 2**63 - 1)
    start: float = _field(1_750_000_000.0, "start of the traffic, in seconds since 1970", 0, 1e10)
    purgatory: str = _field("generated", "name of the purgatory")
    operation: str = _field("Request", "type of the operations")

    def __post_init__(self) -> None:
        """Raise `PipelineError`, which names the field, for traffic that cannot be generated."""
        for each in fields(self):
            value, type_ = getattr(self, each.name), type(each.default)
            if type_ is str:
                if not isinstance(value, str) or not value:
                    raise PipelineError(f"{each.name} must be a name, not {value!r}")
                continue
            lowest, highest = each.metadata["limits"]
            is_number = isinstance(value, (int, type_)) and not isinstance(value, bool)
            if not is_number or not lowest <= value <= highest:
                limits = f"whole number from {lowest} to {highest}"
                if type_ is float:
                    limits = f"number from {lowest:g} to {highest:g}"
                raise PipelineError(f"{each.name} must be a {limits}, not {value!r}")
        if self.upper_quartile < self.median:
            raise PipelineError(
                f"upper_quartile, {self.upper_quartile!r}, must not be less than median, {self.median!r}"
            )
        if self.rate * self.seconds * self.instances > _MOST:
            raise PipelineError(f"rate times seconds times instances must not be more than {_MOST:g} operations")


PRESETS: Final = {
    "low": Traffic(median=0.020, upper_quartile=0.060, timeout=1.0),
    "high": Traffic(median=0.200, upper_quartile=0.400, timeout=3.0),
    "service": Traffic(
        rate=1_000.0,
        instances=4,
        median=0.300,
        upper_quartile=0.700,
        timeout=3.0,
        zipf=1.0,
        slowest=4.0,
        together=5,
        cancelled=0.02,
        missed=0.002,
    ),
}
"""The proposal's two scenarios, with a low and a high rate of timeouts and with longer timeouts than its 200 ms, and a
service with troubles."""


def generate(spark: SparkSession, traffic: Traffic, partitions: int | None = None) -> DataFrame:
    """The rows of a trace with `traffic`, instance by instance, in order of arrival within each slice.

    The rows are the same for any number of `partitions`.
    """
    slices = _slices(traffic)
    total = traffic.instances * slices
    if partitions is None:
        partitions = min(total, max(4 * parallelism(spark), math.ceil(total / 20)))

    def draw(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keys = _Keys(traffic)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                rows = _draw(traffic, keys, *divmod(number, slices))
                yield from rows.to_batches(max_chunksize=_BATCH)

    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    return spark.range(0, total, 1, partitions).mapInArrow(draw, columns)


def write(rows: DataFrame, path: str) -> None:
    """Write the rows of a trace to `path`, in a journal's directories. Raises `PipelineError` if `path` exists."""
    # A task has the rows of few instances and days: with a file open for each the rows need not be sorted.
    rows.sparkSession.conf.set("spark.sql.maxConcurrentOutputFileWriters", 16)
    try:
        rows.write.partitionBy("date", "instance").parquet(path)
    except AnalysisException as error:
        if error.getCondition() != "PATH_ALREADY_EXISTS":
            raise
        raise PipelineError(f"{path} exists: name another directory, for traces are not mixed") from None


def _slices(traffic: Traffic) -> int:
    """The number of slices of an instance's time."""
    return max(1, math.ceil(traffic.rate * traffic.seconds / _SLICE))


def _draw(traffic: Traffic, keys: "_Keys", instance: int, number: int) -> pa.Table:
    """The operations that arrive at `instance` in slice `number`."""
    random = np.random.default_rng((traffic.seed, instance, number))
    seconds = traffic.seconds / _slices(traffic)
    count = int(random.poisson(traffic.rate * seconds))
    arrivals = (number + np.sort(random.random(count))) * seconds
    waited, outcome, missed = _ends(traffic, random, arrivals, instance)
    expired = outcome == "expired"
    arrived_at = pa.array(round(traffic.start * 1e6) + (arrivals * 1e6).astype(np.int64)).cast(_ARRIVED_AT)
    groups, first = np.arange(count) // traffic.together, -(-count // traffic.together)
    columns = {
        "purgatory": pa.repeat(traffic.purgatory, count),
        "operation": pa.repeat(traffic.operation, count),
        "keys": keys.draw(random, first).take(pa.array(groups)),
        "arrived_at": arrived_at,
        "timeout_s": pa.repeat(float(traffic.timeout), count),
        "deadline_s": pa.repeat(float(traffic.timeout), count),
        "waited_s": pa.array(waited),
        "outcome": pa.array(outcome.tolist(), pa.string()),
        "late_s": pa.array(np.zeros(count), mask=~expired),
        "opened_at": pa.repeat(pa.scalar(round(traffic.start * 1e6), _ARRIVED_AT), count),
        "missed": pa.array(missed),
        "date": arrived_at.cast(pa.date32()).cast(pa.string()),
        "instance": pa.repeat(f"instance-{instance}", count),
    }
    return pa.table({name: columns[name] for name in COLUMNS})


def _ends(
    traffic: Traffic, random: np.random.Generator, arrivals: Floats, instance: int
) -> tuple[Floats, npt.NDArray[np.str_], npt.NDArray[np.bool_]]:
    """How long operations wait, their outcomes, and whether their check was forgotten."""
    count = len(arrivals)
    groups = np.arange(count) // traffic.together
    mu = math.log(traffic.median)
    sigma = (math.log(traffic.upper_quartile) - mu) / 0.674490  # the 75th percentile of the standard normal
    takes = np.exp(random.normal(mu, sigma, -(-count // traffic.together)))[groups]
    # The change comes so long after the last of its group has arrived.
    last = np.minimum((groups + 1) * traffic.together, count) - 1
    takes += arrivals[last] - arrivals
    if instance == traffic.instances - 1:
        takes *= traffic.slowest
    outcome = np.where(takes > traffic.timeout, "expired", "satisfied")
    waited = np.minimum(takes, traffic.timeout)
    draws, moments = random.random(count), random.random(count)
    missed = (draws < traffic.missed) & (outcome == "satisfied")
    waited[missed] = traffic.timeout + _TICK * moments[missed]
    cancelled = draws >= 1 - traffic.cancelled
    waited[cancelled] *= moments[cancelled]
    outcome[cancelled] = "cancelled"
    return waited, outcome, missed & ~cancelled


class _Keys:
    """The keys, and their distribution."""

    def __init__(self, traffic: Traffic) -> None:
        self._count = traffic.keys
        self._each = traffic.keys_per_operation
        self._shares: Floats | None = None
        """The share of the keys up to each rank in all draws."""
        if traffic.zipf > 0:
            shares = np.cumsum(np.arange(1, traffic.keys + 1, dtype=np.float64) ** -traffic.zipf)
            self._shares = shares / shares[-1]

    def draw(self, random: np.random.Generator, count: int) -> pa.Array:
        """The keys of that many operations, in the order of the draws, without repetitions."""
        shape = (count, self._each)
        if self._shares is None:
            drawn = random.integers(0, self._count, shape)
        else:
            drawn = np.searchsorted(self._shares, random.random(shape), side="right")
        fresh = np.ones(shape, np.bool_)
        for column in range(1, self._each):
            fresh[:, column] = (drawn[:, :column] != drawn[:, column : column + 1]).all(axis=1)
        offsets = np.concatenate(([0], np.cumsum(fresh.sum(axis=1)))).astype(np.int32)
        ranks, which = np.unique(drawn[fresh], return_inverse=True)
        names = pa.array([f"key-{rank + 1}" for rank in ranks.tolist()], pa.string())
        return pa.ListArray.from_arrays(pa.array(offsets), names.take(pa.array(which)))
