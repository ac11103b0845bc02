"""Traffic at any scale, made on Spark and written as a trace.

Time is cut into slices, and each slice of each instance is drawn on its own, from a random generator that is seeded by
(seed, instance, slice): so the traffic does not depend on how Spark divides the work. Arrivals are a Poisson process
anyway: the number in a slice is Poisson distributed, and given their number, they are uniform in it, which is
the same as exponential intervals from one to the next, across slices too.
"""

import math
from collections.abc import Iterator
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from purgatory.pipeline.trace import COLUMNS
from purgatory.pipeline.traffic import Traffic
from purgatory.spark.errors import PipelineError
from purgatory.spark.session import parallelism

_SLICE: Final = 50_000
"""The average number of operations of a slice: some megabytes, and some hundredths of a second of work."""

_TICK: Final = 0.001
"""The most seconds from a deadline to the last try."""

_BATCH: Final = 10_000
"""Rows handed to Spark in one go."""

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]

_ARRIVED_AT: Final = pa.timestamp("us", tz="UTC")

_DAY: Final = 86_400_000_000
"""Microseconds."""


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
    rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
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
    arrived_at = round(traffic.start * 1e6) + (arrivals * 1e6).astype(np.int64)
    groups, first = np.arange(count) // traffic.together, -(-count // traffic.together)
    columns = {
        "purgatory": pa.repeat(traffic.purgatory, count),
        "operation": pa.repeat(traffic.operation, count),
        "keys": keys.draw(random, first).take(pa.array(groups)),
        "arrived_at": pa.array(arrived_at).cast(_ARRIVED_AT),
        "timeout_s": pa.repeat(float(traffic.timeout), count),
        "deadline_s": pa.repeat(float(traffic.timeout), count),
        "waited_s": pa.array(waited),
        "outcome": pa.array(outcome.tolist(), pa.string()),
        "late_s": pa.array(np.zeros(count), mask=~expired),
        "opened_at": pa.repeat(pa.scalar(round(traffic.start * 1e6), _ARRIVED_AT), count),
        "missed": pa.array(missed),
        "date": _dates(arrived_at),
        "instance": pa.repeat(f"instance-{instance}", count),
    }
    return pa.table({name: columns[name] for name in COLUMNS})


def _ends(
    traffic: Traffic, random: np.random.Generator, arrivals: Floats, instance: int
) -> tuple[Floats, npt.NDArray[np.str_], npt.NDArray[np.bool_]]:
    """How long operations wait, their outcomes, and whether their check was forgotten."""
    count = len(arrivals)
    groups = np.arange(count) // traffic.together
    takes = np.exp(random.normal(traffic.mu, traffic.sigma, -(-count // traffic.together)))[groups]
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


def _dates(arrived_at: Integers) -> pa.Array:
    days, which = np.unique(arrived_at // _DAY, return_inverse=True)
    return pa.array(days.astype("datetime64[D]").astype(str).tolist(), pa.string()).take(pa.array(which))


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
