"""Follow a journal while it grows, and write its cube: each micro-batch adds the rows of its files.

A batch becomes a directory `CUBE/batch=N` with one Parquet file, which appears whole. The rows of a cube add up, so a
batch needs neither the state nor the watermark of windows: an instance whose clock is wrong makes nobody's rows late,
and the newest rows are there as soon as they are read. A batch that is done again after a crash has the same files, and
finds its own there. (Spark's own file sink is exactly-once only for readers of its log of files.) This process merges
the batches of a cube on this machine (`compact`), because those who call the function of a batch may lack this library.
"""

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from purgatory.pipeline.compact import compact
from purgatory.pipeline.places import literal
from purgatory.pipeline.trace import COLUMNS, maker, numbers
from purgatory.pipeline.words import count, name, seconds
from purgatory.spark.errors import PipelineError

_LONGEST: Final = 86_400
_PATIENCE: Final = 30.0
"""Seconds that a batch may take to be finished when the stream is told to stop."""
_LOOK: Final = 0.2
"""Seconds from one look at the query's progress to the next."""
_MOST_FILES: Final = 1000
"""Files of a batch. The first one would have all that the journal ever had."""
_SAMPLED: Final = 2000
"""Operations of a batch whose moments its cube has, about."""
_MARKER: Final = "_stream"
"""The directory with the name of the stream that writes a cube: Spark's, from the checkpoint."""
_RAISED: Final = re.compile(r"(?:Exception|Error): \[\S+\] (.+)")
_CODES: Final = re.compile(r" *SQLSTATE: \w+")


def follow(
    spark: SparkSession,
    journal: str,
    cube: str,
    checkpoint: str,
    say: Callable[[str], object],
    *,
    slot: float = 60.0,
    once: bool = False,
    interval: float = 10.0,
) -> None:
    """Write the cube of `journal`, from the progress in `checkpoint` on, until SIGINT or SIGTERM comes.

    `slot` is the length of a slot of time in the cube, and `interval` the time from one look for new files to the next,
    in seconds. With `once` it reads the present files, and ends. Calls `say` with a line for every batch. A batch that
    is interrupted is done again by the next run. Raises `PipelineError` for a query that fails, because a file cannot
    be read or has an impossible row, and names that. Also, with nothing done, if the journal is missing, the slot is
    impossible, or the checkpoint is that of another cube.
    """
    if not 1e-3 <= slot <= _LONGEST:
        raise PipelineError(f"slot must be a number of seconds from 0.001 to {_LONGEST}, not {slot!r}")
    trigger = {"availableNow": True} if once else {"processingTime": f"{round(interval * 1e6)} microseconds"}
    last = -1

    def tell() -> bool:
        nonlocal last
        before = last
        for progress in query.recentProgress:
            if progress["batchId"] > last and progress.get("observedMetrics"):
                last = progress["batchId"]
                say(progress_line(progress, time.time()))
        return last > before

    def merge() -> bool:
        try:
            return compact(cube)
        except (OSError, pa.ArrowException) as error:
            say(f"the batches of {cube} are not merged: {error}")
            return False

    with _told_to_stop() as stop:
        rows = _rows(spark, journal)
        _refuse_others(spark, cube, checkpoint)
        writer = rows.writeStream.foreachBatch(_batches(cube, checkpoint, round(slot * 1e6)))
        query = writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()
        try:
            ended, is_due = False, True
            while not ended and not stop.is_set():
                stop.wait(_LOOK)
                ended = not query.isActive
                is_due = tell() or is_due
                is_due = is_due and merge()
            if ended:
                query.awaitTermination()  # raises what it has failed of
                while not stop.is_set() and merge():
                    pass
            else:
                _let_finish(query)
                tell()
        except (PySparkException, Py4JError, OSError) as error:
            if stop.is_set():
                return  # the signal was for Spark's process as well
            if isinstance(error, StreamingQueryException):
                raise PipelineError(f"following {journal} failed: {_reason(error)}") from error
            raise
        finally:
            with suppress(PySparkException, Py4JError, OSError):  # Spark's process may have ended
                query.stop()
        if stop.is_set():
            say("stopped")


def _rows(spark: SparkSession, journal: str) -> DataFrame:
    """The rows of the files of each batch, with what `progress_line` tells of them."""
    schema = ", ".join(f"{title} {kind}" for title, kind in COLUMNS.items())
    reader = spark.readStream.schema(schema).option("basePath", journal).option("pathGlobFilter", "*.parquet")
    try:
        rows = reader.option("maxFilesPerTrigger", _MOST_FILES).parquet(literal(journal))
        rows.schema  # noqa: B018  # a Connect server looks at the path no sooner
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise PipelineError(f"{journal} does not exist") from None
    finished = F.unix_micros("arrived_at") / 1e6 + F.col("waited_s")
    is_ahead = finished > F.unix_micros(F.current_timestamp()) / 1e6
    return rows.withColumn("file", F.expr("_metadata.file_path")).observe(
        "seen",
        F.count(F.lit(1)).alias("operations"),
        F.max(F.when(~is_ahead, finished)).alias("newest"),
        F.count_if(is_ahead).alias("ahead"),
        F.collect_set(F.when(is_ahead, F.col("instance"))).alias("instances"),
    )


def _refuse_others(spark: SparkSession, cube: str, checkpoint: str) -> None:
    """Raise `PipelineError` if the checkpoint is that of another cube: batches of the same number would be lost."""
    written, own = _lines(spark, f"{cube}/{_MARKER}"), _lines(spark, f"{checkpoint}/metadata")
    if written != own and (written or _lines(spark, f"{checkpoint}/commits")):
        raise PipelineError(
            f"{checkpoint} is not the checkpoint of {cube}: name those that belong together, or new ones"
        )


def _lines(spark: SparkSession, path: str) -> list[str]:
    """The lines of the files at a path; none, if it is missing."""
    try:
        return sorted(row[0] for row in spark.read.text(literal(path)).collect())
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return []


def _batches(cube: str, checkpoint: str, slot: int) -> Callable[[DataFrame, int], None]:
    """Return a function that writes the cube of a batch, whole and once.

    A Connect server calls the function in a process that does not have this library: it must need nothing of it.
    """
    make, values, marker = maker(), numbers(slot, 0, _SAMPLED), _MARKER
    pattern, metadata = literal(cube), literal(f"{checkpoint}/metadata")

    def write(rows: DataFrame, batch: int) -> None:
        spark = rows.sparkSession

        def files(path: str) -> list[str]:
            try:
                return spark.read.format("binaryFile").load(f"{pattern}/{path}").inputFiles()
            except AnalysisException as error:
                if error.getCondition() != "PATH_NOT_FOUND":
                    raise
                return []

        def is_merged() -> bool:
            spans = re.findall(r"/batches=(\d+)-(\d+)/[^/]+$", "\n".join(files("batches=*")), re.MULTILINE)
            return any(int(first) <= batch <= int(last) for first, last in spans)

        now = spark.sql("SELECT unix_micros(current_timestamp())").collect()[0][0]
        table = make(spark, rows, {**values, "now": now}, None)
        for text in table["refused"].drop_null().unique().to_pylist():
            column, _, file = text.partition(" in ")
            if file:
                raise ValueError(f"{file}: the column {column} is missing, or has a value that it cannot have")
        if not files(marker):
            spark.read.text(metadata).coalesce(1).write.mode("overwrite").text(f"{cube}/{marker}")
        if not files(f"batch={batch}") and not is_merged():  # in one file, so that the batch is whole or absent
            spark.createDataFrame(table).coalesce(1).write.mode("overwrite").parquet(f"{cube}/batch={batch}")

    return write


def progress_line(progress: Mapping[str, Any], now: float) -> str:
    """A line about a batch, from its `StreamingQueryProgress`."""
    seen = progress["observedMetrics"]["seen"]
    # With Connect, it is a row of the values and of their schema.
    operations, newest, ahead, instances = seen["values"] if "schema" in seen else seen
    line = f"batch {progress['batchId']}: {count(operations)} operations"
    if newest is not None:
        line += f", the newest ended {seconds(round(max(now - newest, 0.0), 1))} ago"
    if ahead:
        clocks = ", ".join(name(each) for each in sorted(instances)[:5])
        line += f"; {count(ahead)} of them are refused: they end later than now, by the clock of {clocks}"
    return line


@contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set meanwhile, on the main thread, which alone may set their handlers."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _let_finish(query: StreamingQuery) -> None:
    """Wait a short time for the present batch: an interrupted one fails with a long traceback."""
    with suppress(PySparkException, Py4JError, OSError):
        until = time.monotonic() + _PATIENCE
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until:
            time.sleep(_LOOK)


def _reason(error: StreamingQueryException) -> str:
    """The root cause of a failed query. An error of the sink has a traceback of its own around it."""
    raised = _RAISED.search(str(error)) or re.search(r"ValueError: (.+)", str(error))
    reason = raised[1] if raised else str(error).splitlines()[0]
    return _CODES.sub("", reason).strip(" .")
