"""Traffic at any scale, made on Spark and written as a trace.

Time is cut into slices, and each slice of each instance is drawn by itself, from a random generator that is seeded by
(seed, instance, slice): so the traffic does not depend on how Spark divides the work. Arrivals are a Poisson process
all the same: the number in a slice is Poisson distributed, and given their number, they are uniform in it, which is
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

from purgatory.spark import storage
from purgatory.spark.columns import COLUMNS, schema
from purgatory.spark.errors import PipelineError
from purgatory.spark.session import parallelism
from purgatory.spark.traffic import Traffic

__all__ = ["generate", "write"]

_SLICE: Final = 50_000
"""The average number of operations of a slice: some megabytes, and some hundredths of a second of work."""

_ROW_GROUP: Final = 4 * 1024 * 1024
"""The bytes of a row group before compression, some 150,000 operations. A replay reads whole ones for parts of them."""

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

    return spark.range(0, total, 1, partitions).mapInArrow(draw, schema())


def write(rows: DataFrame, path: str) -> None:
    """Write the rows of a trace to `path`, in a journal's directories. Raises `PipelineError` if `path` exists."""
    # A task has the rows of few instances and days: with a file open for each the rows need not be sorted.
    rows.sparkSession.conf.set("spark.sql.maxConcurrentOutputFileWriters", 16)
    rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    rows.sparkSession.conf.set("parquet.block.size", _ROW_GROUP)
    try:
        storage.write(rows, path, by=("date", "instance"))
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
    completes = np.exp(random.normal(traffic.mu, traffic.sigma, count))
    expired = completes > traffic.timeout
    arrived_at = round(traffic.start * 1e6) + (arrivals * 1e6).astype(np.int64)
    columns = {
        "purgatory": pa.repeat(traffic.purgatory, count),
        "operation": pa.repeat(traffic.operation, count),
        "keys": keys.draw(random, count),
        "arrived_at": pa.array(arrived_at).cast(_ARRIVED_AT),
        "timeout_s": pa.repeat(float(traffic.timeout), count),
        "deadline_s": pa.repeat(float(traffic.timeout), count),
        "waited_s": pa.array(np.minimum(completes, traffic.timeout)),
        "outcome": pa.array(["satisfied", "expired"]).take(pa.array(expired.astype(np.int8))),
        "late_s": pa.array(np.zeros(count), mask=~expired),
        "opened_at": pa.repeat(pa.scalar(round(traffic.start * 1e6), _ARRIVED_AT), count),
        "completes_s": pa.array(completes),
        "date": _dates(arrived_at),
        "instance": pa.repeat(f"instance-{instance}", count),
    }
    return pa.table({name: columns[name] for name in COLUMNS})


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
