"""Replay a trace with other settings: the outcomes that it would have had, and the costs.

Each purgatory of each instance has one simulation (`simulate`) for each configuration, on any executor. Spark sorts the
trace and streams it to the simulations through Arrow: a simulation keeps the pending operations, and no others.

One instance with very many operations would make the whole replay wait for it. So it is cut in time into *segments*,
which are simulated by themselves. Operations that are pending at a cut are handed to both sides: the later segment
plays them first, so that at the cut its purgatory holds what it would have held. Outcomes, waits and lateness are
exactly those of one long simulation. The dead entries that finished operations have left in the watcher lists begin
anew at a cut; that is less than one purge. The cuts depend on the trace alone, so that the same input gives the same
result, however Spark divides the work.

The trace is sorted once for each configuration, because they run side by side: a sweep needs as many times its disk.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import chain, groupby, pairwise, product, repeat, starmap
from math import inf
from operator import itemgetter
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory import VirtualClock
from purgatory.spark import storage, trace
from purgatory.spark.errors import PipelineError
from purgatory.spark.session import parallelism
from purgatory.spark.simulate import COUNTS, Arrival, Configuration, Ended, Simulation, late_percentile
from purgatory.spark.trace import Part, Trace

__all__ = ["SPLIT", "Replay", "check_split", "replay", "sweep", "write"]

Batches: TypeAlias = Iterator[pa.RecordBatch]

SPLIT: Final = 1_000_000
"""The approximate number of operations of a segment: ten seconds of work."""

_BINS: Final = 1000
"""The most parts of a span of time that are counted in one go."""

_BATCH: Final = 10_000
"""Rows handed to Spark in one go."""

_MOST_PARTITIONS: Final = 10_000

_SECOND: Final = 1_000_000
"""Microseconds."""

_FOR_EVER: Final = 1e9
"""Seconds. No time is longer, and sums of it and of times since 1970 still have microseconds."""

_LABELS: Final = [
    pa.field("instance", pa.string()),
    pa.field("purgatory", pa.string()),
    pa.field("tick", pa.float64()),
    pa.field("wheel_size", pa.int64()),
    pa.field("purge_interval", pa.int64()),
    pa.field("timeout", pa.float64()),
]
"""The columns that name a simulation."""

_COUNTED: Final = [
    *(pa.field(name, pa.int64()) for name in (*COUNTS, "peak_delayed", "peak_dead")),
    pa.field("late", pa.list_(pa.int64())),
    pa.field("late_max", pa.float64()),
]
"""The counts of a segment."""

_ENDED: Final = [
    pa.field("operation", pa.string()),
    pa.field("keys", pa.list_(pa.string())),
    pa.field("arrived_at", pa.timestamp("us", tz="UTC")),
    pa.field("timeout_s", pa.float64()),
    pa.field("waited_s", pa.float64()),
    pa.field("outcome", pa.string()),
    pa.field("late_s", pa.float64()),
]
"""The end of an operation, as in a journal."""

_RESULT: Final = pa.schema([*_LABELS, *_COUNTED, *_ENDED])
_SUMMARY: Final = pa.schema(
    [
        *_LABELS,
        *_COUNTED[:-2],
        pa.field("segments", pa.int64()),
        *(pa.field(name, pa.float64()) for name in ("late_p50", "late_p99", "late_max")),
    ]
)

_END: Final = """
    CASE WHEN outcome IN ('cancelled', 'failed') THEN waited_s
         WHEN outcome = 'completed_at_once' THEN 0.0
         WHEN outcome = 'closed' AND coalesce(completes_s, double('inf')) = double('inf') THEN waited_s
         WHEN completes_s IS NOT NULL THEN completes_s
         WHEN outcome = 'satisfied' THEN waited_s
         ELSE double('inf') END
"""
"""The seconds after which an operation ends if its timeout does not come first."""

_ENDING: Final = """
    CASE WHEN outcome IN ('expired', 'closed') AND completes_s < double('inf') THEN 'satisfied' ELSE outcome END
"""
"""The outcome at that end."""

_TIMEOUT: Final = """
    CASE WHEN outcome = 'expired' AND abs(waited_s - late_s - timeout_s) > 1e-6 THEN greatest(waited_s - late_s, 0.0)
         WHEN outcome <> 'expired' AND waited_s > timeout_s THEN NULL
         ELSE timeout_s END
"""
"""Seconds from the arrival to the last deadline: a journal's `timeout_s` counts from the last reschedule. The deadline
of an operation that ended later than its timeout, without expiring, is not known.
"""


@dataclass(frozen=True, slots=True)
class Replay:
    """The results of a replay, not computed before they are asked for."""

    summary: DataFrame
    """One row for each purgatory of each instance and each configuration."""
    operations: DataFrame | None
    """One row for each operation and each configuration, if asked for."""
    simulations: int
    """The number of simulations, segments counted."""
    results: DataFrame
    """The rows that both are made of."""


def sweep(
    ticks: Sequence[float] = (0.001,),
    wheel_sizes: Sequence[int] = (20,),
    purge_intervals: Sequence[int] = (1000,),
    timeouts: Sequence[float | None] = (None,),
) -> list[Configuration]:
    """All combinations of the settings. Raises `PipelineError` if one of them is impossible, or there are none."""
    configurations = [Configuration(*values) for values in product(ticks, wheel_sizes, purge_intervals, timeouts)]
    if not configurations:
        raise PipelineError("a sweep needs at least one value of each setting")
    return list(dict.fromkeys(configurations))


def check_split(split: int) -> None:
    """Raise `PipelineError` unless `split` is a number of operations after which to cut."""
    if split < 1:
        raise PipelineError(f"split must be at least 1, not {split!r}")


def replay(
    spark: SparkSession,
    recorded: Trace,
    configurations: Sequence[Configuration],
    *,
    operations: bool = False,
    split: int = SPLIT,
    purgatory: str | None = None,
) -> Replay:
    """Run the operations of `recorded` through simulated purgatories, with each of `configurations`.

    `purgatory` is the name of the only one to replay. Instances with more than `split` operations are cut in time.
    Raises `PipelineError` for impossible values and for a purgatory that the trace does not have.
    """
    check_split(split)
    rows = recorded.rows
    if purgatory is not None:
        rows = rows.where(F.col("purgatory") == purgatory)
    found = trace.parts(Trace(rows, recorded.files, recorded.skipped))
    if not found:
        names = ", ".join(row[0] for row in recorded.rows.select("purgatory").distinct().orderBy("purgatory").collect())
        raise PipelineError(
            f"the trace has no purgatory {purgatory!r}, but: {names}" if names else "the trace is empty"
        )
    plan = _Plan(tuple(found), tuple(configurations), _cuts(spark, rows, found, configurations, split))
    results = plan.distribute(spark, rows).mapInArrow(plan.simulations(operations), from_arrow_schema(_RESULT))
    labels = [field.name for field in _LABELS]
    counted = results.where("outcome is null").select(*labels, *(field.name for field in _COUNTED))
    summary = counted.groupBy(*labels).applyInArrow(_merge, from_arrow_schema(_SUMMARY))
    ended = results.where("outcome is not null").select(*labels, *(field.name for field in _ENDED))
    return Replay(summary, ended if operations else None, plan.count(), results)


def write(replayed: Replay, path: str) -> DataFrame:
    """Compute the results and write them to `path`, as `summary` and, if asked for, `operations`. Returns the summary.

    Raises `PipelineError` if `path` exists already.
    """
    trace.refuse_existing(replayed.results.sparkSession, path)
    try:
        if replayed.operations is not None:
            replayed.results.persist(StorageLevel.DISK_ONLY)  # both come from one run
            storage.write(replayed.operations, f"{path}/operations")
        labels = [field.name for field in _LABELS]
        storage.write(replayed.summary.coalesce(1).sortWithinPartitions(*labels), f"{path}/summary")
    finally:
        replayed.results.unpersist()
    return storage.read(replayed.results.sparkSession, f"{path}/summary")


@dataclass(frozen=True, slots=True)
class _Plan:
    """The simulations of a replay. Each has a number, its *unit*: by part, then configuration, then segment."""

    parts: tuple[Part, ...]
    configurations: tuple[Configuration, ...]
    cuts: tuple[tuple[int, ...], ...]
    """The cuts of each part, in microseconds since 1970."""

    @property
    def segments(self) -> int:
        """The most segments of a part."""
        return max(map(len, self.cuts)) + 1

    def count(self) -> int:
        """The number of simulations."""
        return sum(len(cuts) + 1 for cuts in self.cuts) * len(self.configurations)

    def distribute(self, spark: SparkSession, rows: DataFrame) -> DataFrame:
        """The input of each simulation: the rows of a unit together, in order of arrival."""
        numbers = [(part.instance, part.purgatory, number, self.cuts[number]) for number, part in enumerate(self.parts)]
        numbered = spark.createDataFrame(numbers, "instance string, purgatory string, part long, cuts array<long>")
        known = rows.join(F.broadcast(numbered), ["instance", "purgatory"]).select(
            "part",
            "cuts",
            F.explode(F.sequence(F.lit(0), F.lit(len(self.configurations) - 1))).alias("configuration"),
            F.unix_micros("arrived_at").alias("arrived"),
            "operation",
            F.array_distinct("keys").alias("keys"),  # different ones may be the same as text
            F.expr(_TIMEOUT).alias("timeout_s"),
            F.expr(_END).alias("end"),
            F.expr(_ENDING).alias("ending"),
        )
        segment = F.lit(0)
        if self.segments > 1:
            ticks = F.array(*[F.lit(each.tick) for each in self.configurations])
            timeouts = F.array(*[F.lit(each.timeout).cast("double") for each in self.configurations])
            timeout = F.coalesce(F.get(timeouts, F.col("configuration")), F.col("timeout_s"), F.lit(_FOR_EVER))
            stays = F.least(F.col("end"), timeout, F.lit(_FOR_EVER)) + F.get(ticks, F.col("configuration"))
            leaves = F.col("arrived") + F.ceil(stays * _SECOND)
            segment = F.explode(F.sequence(_segment(F.col("arrived")), _segment(leaves)))
        unit = (F.col("part") * len(self.configurations) + F.col("configuration")) * self.segments + F.col("segment")
        columns = ["arrived", "operation", "keys", "timeout_s", "end", "ending"]
        # With few simulations, each has several partitions, so that not too many come to the same one by chance.
        count = self.count()
        partitions = min(max(count, min(4 * count, 8 * parallelism(spark))), _MOST_PARTITIONS)
        return (
            known.withColumn("segment", segment)
            .select(unit.alias("unit"), *columns)
            .repartition(partitions, "unit")
            .sortWithinPartitions("unit", *columns)
        )

    def simulations(self, operations: bool) -> Callable[[Batches], Batches]:
        """The work on the executors: simulate one unit after the other, and yield its counts."""

        def run(batches: Batches) -> Batches:
            for unit, pieces in groupby(_pieces(batches), key=itemgetter(0)):
                number, segment = divmod(unit, self.segments)
                part, configuration = self._part(number)
                base = part.first // _SECOND * _SECOND
                arrivals = chain.from_iterable(_arrivals(piece, base, operations) for _, piece in pieces)
                cuts = [-inf, *((cut - base) / _SECOND for cut in self.cuts[number // len(self.configurations)]), inf]
                labels = (part.instance, part.purgatory, *astuple(configuration))
                ended: list[Ended] = []
                clock = VirtualClock()
                simulation = Simulation(clock, configuration, ended.append if operations else None)
                for when in simulation.play(arrivals, cuts[segment], cuts[segment + 1]):
                    clock.advance_to(when)
                    if len(ended) >= _BATCH:
                        yield _ended(labels, ended)
                        ended.clear()
                if ended:
                    yield _ended(labels, ended)
                yield _counted(labels, simulation)

        return run

    def _part(self, number: int) -> tuple[Part, Configuration]:
        part, configuration = divmod(number, len(self.configurations))
        return self.parts[part], self.configurations[configuration]


def _segment(time: Column) -> Column:
    """The segment that `time` falls into, in microseconds since 1970."""
    return F.size(F.filter("cuts", lambda cut: cut <= time))


def _cuts(
    spark: SparkSession, rows: DataFrame, parts: Sequence[Part], configurations: Sequence[Configuration], split: int
) -> tuple[tuple[int, ...], ...]:
    """The cuts of each part, so that a segment has about `split` operations.

    The operations that are pending at a cut are handed to both sides. So that this stays a small part of the work, a
    segment has at least ten times as many operations as are pending on average.
    """
    cuts: list[list[int]] = [[] for _ in parts]
    large = {number for number, part in enumerate(parts) if part.operations > split}
    pending = _pending(spark, rows, parts, configurations, large) if large else {}
    limits = {number: max(split, math.ceil(10 * many)) for number, many in pending.items()}
    # From coarse bins to finer ones, where one of them has too many operations.
    spans = [
        (number, parts[number].first, parts[number].last - parts[number].first + 1, parts[number].operations)
        for number in limits
    ]
    bins: dict[int, list[tuple[int, int]]] = {number: [] for number in limits}
    while spans:
        widths = [-(-length // min(_BINS, 4 * -(-count // limits[number]))) for number, _, length, count in spans]
        finer = []
        for index, place, count in _histogram(spark, rows, parts, spans, widths):
            number, first, _, _ = spans[index]
            start, width = first + place * widths[index], widths[index]
            if count > limits[number] and width > 1:
                finer.append((number, start, width, count))
            else:
                bins[number].append((start, count))
        spans = finer
    for number, found in bins.items():
        operations = 0
        for start, count in sorted(found):
            if operations and operations + count > limits[number]:
                cuts[number].append(start)
                operations = 0
            operations += count
    return tuple(map(tuple, cuts))


def _pending(
    spark: SparkSession,
    rows: DataFrame,
    parts: Sequence[Part],
    configurations: Sequence[Configuration],
    numbers: Iterable[int],
) -> dict[int, float]:
    """The average number of pending operations of each part, with the longest timeout: arrivals times their wait."""
    named = [(parts[number].instance, parts[number].purgatory, number) for number in numbers]
    numbered = spark.createDataFrame(named, "instance string, purgatory string, part long")
    recorded = F.coalesce(F.expr(_TIMEOUT), F.lit(_FOR_EVER))
    timeouts = [recorded if each.timeout is None else F.lit(float(each.timeout)) for each in configurations]
    stays = F.sum(F.least(F.expr(_END), F.greatest(*timeouts, F.lit(0.0)), F.lit(_FOR_EVER)))
    found = rows.join(F.broadcast(numbered), ["instance", "purgatory"]).groupBy("part").agg(stays).collect()
    seconds = {number: (part.last - part.first + 1) / _SECOND for number, part in enumerate(parts)}
    return {number: total / seconds[number] for number, total in found}


def _histogram(
    spark: SparkSession,
    rows: DataFrame,
    parts: Sequence[Part],
    spans: Sequence[tuple[int, int, int, int]],
    widths: Sequence[int],
) -> list[Row]:
    """The number of operations that arrive in each bin of each span: the span's index, the bin's number, the count."""
    named = [
        (parts[number].instance, parts[number].purgatory, index, first, first + length, widths[index])
        for index, (number, first, length, _) in enumerate(spans)
    ]
    numbered = spark.createDataFrame(
        named, "instance string, purgatory string, span long, first long, stop long, width long"
    )
    arrived = F.unix_micros("arrived_at")
    place = F.floor((arrived - F.col("first")) / F.col("width"))
    return (
        rows.join(F.broadcast(numbered), ["instance", "purgatory"])
        .where((arrived >= F.col("first")) & (arrived < F.col("stop")))
        .groupBy("span", place.alias("bin"))
        .count()
        .orderBy("span", "bin")
        .collect()
    )


def _pieces(batches: Batches) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows, those of one unit at a time."""
    for batch in batches:
        units = batch.column("unit").to_numpy()
        starts = [0, *(np.flatnonzero(np.diff(units)) + 1).tolist(), len(units)]
        for start, stop in pairwise(starts):
            if start < stop:
                yield int(units[start]), batch.slice(start, stop - start)


def _arrivals(rows: pa.RecordBatch, base: int, operations: bool) -> Iterable[Arrival]:
    arrived = rows.column("arrived").to_numpy()
    references: Iterable[Any] = repeat(None)
    if operations:
        references = zip(
            rows.column("operation").to_pylist(), arrived.tolist(), rows.column("keys").to_pylist(), strict=True
        )
    return starmap(
        Arrival,
        zip(
            ((arrived - base) / _SECOND).tolist(),
            _keys(rows.column("keys")),
            rows.column("timeout_s").to_pylist(),
            rows.column("end").to_numpy().tolist(),
            rows.column("ending").to_pylist(),
            references,
            strict=False,
        ),
    )


def _keys(column: pa.ListArray) -> Iterator[tuple[str, ...]]:
    """The keys of each row; equal ones are one object, which `to_pylist` would make anew for each."""
    encoded = pc.dictionary_encode(column.flatten())
    names = encoded.dictionary.to_pylist()
    keys = [names[index] for index in encoded.indices.to_numpy().tolist()]
    stop = 0
    for count in pc.list_value_length(column).to_numpy().tolist():
        start, stop = stop, stop + count
        yield tuple(keys[start:stop])


def _counted(labels: tuple[Any, ...], simulation: Simulation) -> pa.RecordBatch:
    counts = simulation.counts.values()
    values = [*labels, *counts, simulation.peak_delayed, simulation.peak_dead, simulation.late, simulation.late_max]
    return _batch([[value] for value in values], 1)


def _ended(labels: tuple[Any, ...], ended: list[Ended]) -> pa.RecordBatch:
    references, outcomes, timeouts, waited, late = zip(*ended, strict=True)
    operations, arrived, keys = zip(*references, strict=True)
    rows = len(ended)
    repeated = [pa.repeat(pa.scalar(value, field.type), rows) for value, field in zip(labels, _LABELS, strict=True)]
    nulls = [None for _ in _COUNTED]
    return _batch([*repeated, *nulls, operations, keys, arrived, timeouts, waited, outcomes, late], rows)


def _batch(columns: Sequence[Any], rows: int) -> pa.RecordBatch:
    """The columns of a result; `None` and missing values are null."""
    padded = chain(columns, repeat(None))
    arrays = [
        pa.nulls(rows, field.type) if column is None else pa.array(column, field.type)
        for field, column in zip(_RESULT, padded, strict=False)
    ]
    return pa.record_batch(arrays, schema=_RESULT)


def _merge(segments: pa.Table) -> pa.Table:
    """The counts of one simulation, all its segments together."""
    first = segments.slice(0, 1).to_pylist()[0]
    row = {field.name: first[field.name] for field in _LABELS}
    row |= {name: pc.sum(segments[name]).as_py() for name in COUNTS}
    row |= {name: pc.max(segments[name]).as_py() for name in ("peak_delayed", "peak_dead")}
    late = [sum(counts) for counts in zip(*segments["late"].to_pylist(), strict=True)]
    most = pc.max(segments["late_max"]).as_py()
    row["segments"] = len(segments)
    for name, share in (("late_p50", 0.5), ("late_p99", 0.99)):
        percentile = late_percentile(late, share, row["tick"])
        row[name] = None if percentile is None else min(percentile, most)
    row["late_max"] = most if row["expired"] else None
    return pa.Table.from_pylist([row], _SUMMARY)
