"""Replay a trace with other settings: the outcomes that it would have had, and the costs.

Each purgatory of each instance has one simulation (`simulate`) for each configuration. A Spark task reads the Parquet
files that it needs by itself, once for all of its simulations: nothing is shuffled, and the JVM sees the results alone.

One instance with very many operations would make the whole replay wait for it. So it is cut in time into *segments*,
which are simulated by themselves. Operations that are pending at a cut are handed to both sides: the later segment
plays them first, so that at the cut its purgatory holds what it would have held. Outcomes, waits and lateness are
exactly those of one long simulation. The dead entries that finished operations have left in the watcher lists begin
anew at a cut; that is less than one purge. The cuts depend on the trace alone, so that the same input gives the same
result, however Spark divides the work.

Where costs are not asked for, there is no simulation (`outcomes`).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import chain, groupby, pairwise, product, repeat
from math import inf
from operator import attrgetter, itemgetter
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory.spark import storage
from purgatory.spark.errors import PipelineError
from purgatory.spark.files import refuse_existing
from purgatory.spark.lives import Lives, lean, lives, opened, read
from purgatory.spark.outcomes import Counted, Endings, Outcomes, Recorded, ends, percentiles
from purgatory.spark.simulate import COUNTS, LATE_BINS, OUTCOMES, Configuration, Ended, Floats, Simulation
from purgatory.spark.survey import Piece
from purgatory.spark.trace import Part, Trace

__all__ = ["SPLIT", "Replay", "check_split", "replay", "sweep", "write"]

Batches: TypeAlias = Iterator[pa.RecordBatch]

SPLIT: Final = 250_000
"""The approximate number of operations of a segment: some seconds of work."""

_TASK: Final = 250_000
"""The operations of a task, counted once for each configuration, if it can be divided so finely."""

_SIDE_BY_SIDE: Final = 8
"""The configurations that are simulated from one copy of the rows, at least."""

_SIMULATIONS: Final = 64
"""The most simulations that a process has at a time."""

_TIMEOUTS: Final = 2_000
"""The most timeouts that are counted from one copy of the rows."""

_LOT: Final = 10_000
"""Operations that a simulation plays in one go, and rows handed to Spark."""

_SECOND: Final = 1_000_000
"""Microseconds."""

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
    *(pa.field(name, pa.int64()) for name in (*COUNTS, "peak_delayed", "peak_dead", "segments")),
    *(pa.field(name, pa.float64()) for name in ("waited", "late_p50", "late_p99", "late_max")),
]
"""The counts of a simulation. Without costs, those of work are null."""

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

_LATE: Final = pa.field("late", pa.list_(pa.int64()))
"""The lateness in a segment, to be added up with that of the others."""

_SUMMARY: Final = pa.schema([*_LABELS, *_COUNTED])
_RESULT: Final = pa.schema([*_LABELS, *_COUNTED, _LATE, *_ENDED])


@dataclass(frozen=True, slots=True)
class Replay:
    """The results of a replay, not computed before they are asked for."""

    summary: DataFrame
    """One row for each purgatory of each instance and each configuration."""
    operations: DataFrame | None
    """One row for each operation and each configuration, if asked for."""
    simulations: int
    """The number of simulations, segments counted; none without costs."""
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
    costs: bool = True,
    split: int = SPLIT,
    purgatory: str | None = None,
) -> Replay:
    """Run the operations of `recorded` through simulated purgatories, with each of `configurations`.

    Without `costs`, nothing is simulated: outcomes, waits and lateness depend on ticks and timeouts alone. `purgatory`
    is the name of the only one to replay. Instances with more than `split` operations are cut in time. Raises
    `PipelineError` for impossible values and for a purgatory that the trace does not have.
    """
    check_split(split)
    parts = [part for part in recorded.parts if purgatory in (None, part.purgatory)]
    if not parts:
        names = ", ".join(sorted({part.purgatory for part in recorded.parts}))
        raise PipelineError(
            f"the trace has no purgatory {purgatory!r}, but: {names}" if names else "the trace is empty"
        )
    if costs:
        units = [unit for part in parts for unit in _segments(part, configurations, split)]
        groups = [_divided(configurations, max(_TASK // unit.operations, _SIDE_BY_SIDE)) for unit in units]
    else:
        units = [_unit(part, range(len(part.pieces)), part.operations) for part in parts]
        groups = [_divided(sorted(configurations, key=_tick_and_timeout), _TIMEOUTS)] * len(units)
    work = [_Work(unit, group) for unit, some in zip(units, groups, strict=True) for group in some]
    tasks = _tasks(work)
    run = _worker(tasks, _simulate if costs else _count, operations=operations)
    results = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(run, from_arrow_schema(_RESULT))
    labels = [field.name for field in _LABELS]
    names_of_counts = [field.name for field in _COUNTED]
    summary = results.where("outcome is null").select(*labels, *names_of_counts, _LATE.name)
    if all(unit.whole for unit in units):
        summary = summary.drop(_LATE.name)
    else:
        summary = summary.groupBy(*labels).applyInArrow(_merge, from_arrow_schema(_SUMMARY))
    ended = results.where("outcome is not null").select(*labels, *(field.name for field in _ENDED))
    return Replay(summary, ended if operations else None, len(configurations) * len(units) if costs else 0, results)


def write(replayed: Replay, path: str) -> DataFrame:
    """Compute the results and write them to `path`, as `summary` and, if asked for, `operations`. Returns the summary.

    Raises `PipelineError` if `path` exists already.
    """
    refuse_existing(replayed.results.sparkSession, path)
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
class _Unit:
    """A segment of a part, or the whole of it."""

    instance: str
    purgatory: str
    base: int
    """The origin of the simulation's time, in microseconds since 1970."""
    groups: tuple[tuple[str, int], ...]
    """The files and their row groups that have an operation of it, or one that may be pending when it begins."""
    operations: int
    """About how many it has."""
    start: float = -inf
    stop: float = inf
    """Microseconds since 1970."""

    @property
    def whole(self) -> bool:
        """Whether it is not a segment."""
        return (self.start, self.stop) == (-inf, inf)

    def lives(self, columns: Sequence[str]) -> Iterator[Lives]:
        """The operations, row group by row group, with these columns of the trace."""
        for file, groups in groupby(self.groups, itemgetter(0)):
            with opened(file) as parquet:
                for _, group in groups:
                    for table in read(parquet, group, columns):
                        yield lives(table.filter(pc.equal(table["purgatory"], self.purgatory)))


@dataclass(frozen=True, slots=True)
class _Work:
    """A unit, and the configurations that share one copy of its rows."""

    unit: _Unit
    configurations: tuple[Configuration, ...]

    @property
    def size(self) -> int:
        """How many operations, counted once for each configuration."""
        return self.unit.operations * len(self.configurations)


def _divided(configurations: Sequence[Configuration], most: int) -> list[tuple[Configuration, ...]]:
    """Groups of about the same size, and of at most `most`."""
    count = -(-len(configurations) // most)
    edges = [number * len(configurations) // count for number in range(count + 1)]
    return [tuple(configurations[start:stop]) for start, stop in pairwise(edges)]


def _tasks(work: Iterable[_Work]) -> list[list[_Work]]:
    """The work of each Spark task, the largest first: small ones share a task."""
    tasks: list[list[_Work]] = []
    size = _TASK
    for each in sorted(work, key=attrgetter("size"), reverse=True):
        if size + each.size > _TASK:
            tasks.append([])
            size = 0
        tasks[-1].append(each)
        size += each.size
    return tasks


def _segments(part: Part, configurations: Sequence[Configuration], split: int) -> list[_Unit]:
    """The segments of a part, with about `split` operations each.

    The operations that are pending at a cut are handed to both sides. So that this stays a small part of the work, a
    segment has at least ten times as many operations as are pending on average.
    """
    timeouts = [inf if each.timeout is None else each.timeout for each in configurations]
    limit = max(split, math.ceil(10 * _pending(part, timeouts)))
    points = np.array([point for piece in part.pieces for point in piece.points])
    weights = np.array([piece.operations / len(piece.points) for piece in part.pieces for _ in piece.points])
    order = np.argsort(points, kind="stable")
    points, reached = points[order], np.cumsum(weights[order])
    wanted = np.arange(1, round(part.operations / limit)) * limit
    cuts = np.unique(points[np.searchsorted(reached, wanted, side="right")]) if part.operations > limit else points[:0]
    cuts = cuts[cuts > part.first]
    before = np.interp(cuts, points, reached, left=0)
    counts = np.diff(np.concatenate(([0], before, [part.operations])))
    first = np.array([piece.points[0] for piece in part.pieces])
    leaves = np.array([_leaves(piece, configurations, timeouts) for piece in part.pieces])
    edges = [-inf, *cuts.tolist(), inf]
    return [
        _unit(part, np.flatnonzero((first < stop) & (leaves >= start)).tolist(), max(1, round(count)), start, stop)
        for (start, stop), count in zip(pairwise(edges), counts.tolist(), strict=True)
    ]


def _unit(part: Part, pieces: Iterable[int], operations: int, start: float = -inf, stop: float = inf) -> _Unit:
    """The unit with these pieces of a part."""
    groups = tuple(sorted((part.pieces[number].file, part.pieces[number].group) for number in pieces))
    return _Unit(part.instance, part.purgatory, part.first // _SECOND * _SECOND, groups, operations, start, stop)


def _pending(part: Part, timeouts: Sequence[float]) -> float:
    """The average number of pending operations with the longest timeout: arrivals times their wait, at most."""
    stayed = sum(piece.stayed for piece in part.pieces)
    longest = max((timeout for timeout in timeouts if timeout < inf), default=0.0)
    ended = sum(piece.ended + longest * piece.unended for piece in part.pieces)
    total = max(stayed if inf in timeouts else 0.0, min(part.operations * longest, ended))
    return total / ((part.last - part.first + 1) / _SECOND)


def _leaves(piece: Piece, configurations: Sequence[Configuration], timeouts: Sequence[float]) -> float:
    """The time by which all operations of a piece have ended, in microseconds since 1970."""
    longest = max(piece.longest_timeout if timeout == inf else timeout for timeout in timeouts)
    stays = min(piece.longest_end, longest) + max(each.tick for each in configurations)
    return piece.last + stays * _SECOND


def _worker(
    tasks: Sequence[Sequence[_Work]], do: Callable[[_Work, bool], Batches], *, operations: bool
) -> Callable[[Batches], Batches]:
    """The function that runs on the executors: it does the work of the tasks whose numbers it is given."""

    def run(batches: Batches) -> Batches:
        lean()
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for work in tasks[task]:
                    yield from do(work, operations)

    return run


def _columns(*, operations: bool, keys: bool) -> list[str]:
    """The columns of a trace that are needed."""
    columns = ["purgatory", "arrived_at", "timeout_s", "deadline_s", "waited_s", "outcome", "late_s", "completes_s"]
    return [*columns, *(["keys"] if keys else []), *(["operation"] if operations else [])]


def _simulate(work: _Work, operations: bool) -> Batches:
    """Simulate a unit with each of its configurations."""
    unit = work.unit
    parts = [_of(each, work) for each in unit.lives(_columns(operations=operations, keys=True))]
    together = Lives.together(parts)
    del parts
    start, stop = ((edge - unit.base) / _SECOND for edge in (unit.start, unit.stop))
    for configurations in _divided(work.configurations, _SIMULATIONS):
        ended: dict[Configuration, list[Ended]] = {each: [] for each in configurations}
        simulations = {
            each: Simulation(each, start, stop, ended[each].append if operations else None) for each in configurations
        }
        for rows in together.rows(unit.base, _LOT, references=operations):
            for configuration, simulation in simulations.items():
                simulation.play(rows)
                if ended[configuration]:
                    yield _ended(_labels(unit, configuration), ended[configuration])
                    ended[configuration].clear()
        for configuration, simulation in simulations.items():
            simulation.finish()
            if ended[configuration]:
                yield _ended(_labels(unit, configuration), ended[configuration])
            yield _counted(_labels(unit, configuration), simulation, unit.whole)


def _of(some: Lives, work: _Work) -> Lives:
    """The operations that arrive in a unit, or may be pending when it begins."""
    unit = work.unit
    if unit.whole:
        return some
    timeouts = [some.timeout if each.timeout is None else each.timeout for each in work.configurations]
    longest = np.broadcast_to(np.maximum.reduce(np.broadcast_arrays(*timeouts)), some.timeout.shape)
    stays = np.minimum(some.end, longest) + max(each.tick for each in work.configurations)
    wanted = (some.arrived < unit.stop) & (some.arrived + np.ceil(stays * _SECOND) >= unit.start)
    return some.take(np.flatnonzero(wanted))


def _labels(unit: _Unit, configuration: Configuration) -> tuple[Any, ...]:
    return unit.instance, unit.purgatory, *astuple(configuration)


def _tick_and_timeout(configuration: Configuration) -> tuple[float, float]:
    return configuration.tick, inf if configuration.timeout is None else configuration.timeout


def _count(work: _Work, operations: bool) -> Batches:
    """Count the outcomes of a part with each configuration, without a simulation."""
    unit = work.unit
    recorded: dict[float, Recorded] = {}
    timeouts: dict[float, set[float]] = {}
    for configuration in work.configurations:
        if configuration.timeout is None:
            recorded[configuration.tick] = Recorded(configuration.tick)
        else:
            timeouts.setdefault(configuration.tick, set()).add(configuration.timeout)
    fixed = {tick: Outcomes(tick, sorted(some)) for tick, some in timeouts.items()}
    for some in unit.lives(_columns(operations=operations, keys=operations)):
        columns = ((some.arrived - unit.base) / _SECOND, some.timeout, some.end, some.ending)
        for each in recorded.values():
            each.add(*columns)
        for counter in fixed.values():
            counter.add(*columns)
        if operations:
            for configuration in work.configurations:
                yield from _ends(_labels(unit, configuration), configuration, some, columns)
    counted: dict[tuple[float, float | None], Counted]
    counted = {(tick, None): each.counted() for tick, each in recorded.items()}
    for tick, counter in fixed.items():
        for timeout, one in zip(sorted(timeouts[tick]), counter.counted(), strict=True):
            counted[tick, timeout] = one
    rows = [
        _summary(_labels(unit, configuration), counted[configuration.tick, configuration.timeout])
        for configuration in work.configurations
    ]
    yield _batch(list(zip(*rows, strict=True)), len(rows))


def _summary(labels: tuple[Any, ...], counted: Counted) -> list[Any]:
    """A row of the counts of one configuration."""
    counts = {**counted.outcomes, "operations": counted.operations, "unknown": counted.unknown}
    counts["pending"] = counted.operations - sum(counted.outcomes.values())
    return [*labels, *(counts.get(name) for name in COUNTS), None, None, None, counted.waited, *counted.late]


def _ends(
    labels: tuple[Any, ...], configuration: Configuration, some: Lives, columns: tuple[Floats, Floats, Floats, Endings]
) -> Batches:
    """The end of each operation with one configuration."""
    arrived, recorded, end, ending = columns
    timeout = recorded if configuration.timeout is None else np.full(len(end), configuration.timeout)
    outcome, waited, late = ends(configuration.tick, arrived, timeout, end, ending)
    has_ended = outcome >= 0
    for start in range(0, len(end), _LOT):
        lot = np.arange(start, min(start + _LOT, len(end)))
        lot = lot[has_ended[lot]]
        table = some.table.take(lot)
        yield _rows(
            labels,
            [
                table["operation"],
                table["keys"],
                some.arrived[lot],
                pa.array(timeout[lot], mask=timeout[lot] == inf),
                waited[lot],
                pa.array(OUTCOMES).take(pa.array(outcome[lot])),
                pa.array(late[lot], mask=outcome[lot] != OUTCOMES.index("expired")),
            ],
            len(lot),
        )


def _counted(labels: tuple[Any, ...], simulation: Simulation, whole: bool) -> pa.RecordBatch:
    late: tuple[float | None, ...] = (None, None, simulation.late_max)
    if whole:
        late = _percentiles(simulation.late, simulation.late_max, labels[2])
    counts = (*simulation.counts.values(), simulation.peak_delayed, simulation.peak_dead, 1)
    values = [*labels, *counts, simulation.waited, *late, None if whole else simulation.late]
    return _batch([[value] for value in values], 1)


def _percentiles(late: Sequence[int], most: float, tick: float) -> tuple[float | None, ...]:
    """The median, the 99th percentile and the maximum of the lateness, rounded up to a thousandth of a tick."""
    bins = np.minimum(np.arange(1, LATE_BINS + 1) * (tick / LATE_BINS), most)
    return percentiles(np.array(late), np.append(bins, most))


def _ended(labels: tuple[Any, ...], ended: list[Ended]) -> pa.RecordBatch:
    references, outcomes, timeouts, waited, late = zip(*ended, strict=True)
    operations, arrived, keys = zip(*references, strict=True)
    return _rows(labels, [operations, keys, arrived, timeouts, waited, outcomes, late], len(ended))


def _rows(labels: tuple[Any, ...], columns: Sequence[Any], rows: int) -> pa.RecordBatch:
    """The ends of operations with one configuration."""
    repeated = [pa.repeat(pa.scalar(value, field.type), rows) for value, field in zip(labels, _LABELS, strict=True)]
    return _batch([*repeated, *(None for _ in (*_COUNTED, _LATE)), *columns], rows)


def _batch(columns: Sequence[Any], rows: int) -> pa.RecordBatch:
    """The columns of a result; `None` and missing values are null."""
    padded = chain(columns, repeat(None))
    arrays = [
        pa.nulls(rows, field.type) if column is None else _array(column, field.type)
        for field, column in zip(_RESULT, padded, strict=False)
    ]
    return pa.record_batch(arrays, schema=_RESULT)


def _array(column: Any, kind: pa.DataType) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else pa.array(column, kind)


def _merge(segments: pa.Table) -> pa.Table:
    """The counts of one simulation, all its segments together."""
    first = segments.slice(0, 1).to_pylist()[0]
    row = {field.name: first[field.name] for field in _LABELS}
    row |= {name: pc.sum(segments[name]).as_py() for name in (*COUNTS, "segments", "waited")}
    row |= {name: pc.max(segments[name]).as_py() for name in ("peak_delayed", "peak_dead")}
    if first["late"] is None:  # of an instance that is not cut
        row |= {name: first[name] for name in _LATE_NAMES}
    else:
        late = [sum(counts) for counts in zip(*segments["late"].to_pylist(), strict=True)]
        most = pc.max(segments["late_max"]).as_py()
        row |= dict(zip(_LATE_NAMES, _percentiles(late, most, row["tick"]), strict=True))
    return pa.Table.from_pylist([row], _SUMMARY)


_LATE_NAMES: Final = ("late_p50", "late_p99", "late_max")
