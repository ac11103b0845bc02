"""Follow a journal while it grows: counts, timeout rates and waits, by windows of time, operation and key.

`follow` runs until it is stopped; `start` leaves that to the caller. Each micro-batch that has windows to write becomes
a directory `OUTPUT/batch=N` with one Parquet file. One file appears whole, by a rename of it, or on an object store by
its upload; a batch that is done once more after a crash finds its file, and leaves it. So every reader of
`OUTPUT/batch=*/*.parquet`, at any time, finds a window once or not yet. (Spark's own file sink is exactly-once only for
readers of its log of files.)

The checkpoint has the progress and the open windows. It goes with one journal, one output, one length of windows and
one watermark: they are written down in both directories, and any other combination is refused.

Rows may come late, by as much as `watermark` behind the latest operation of all instances: a journal writes a file
once a minute. Later rows are dropped, and counted. An instance whose clock is ahead by more makes the rows of all
others late. And Spark does not look at files that are more than a week older than the newest.
"""

import json
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Final, TypeAlias
from uuid import uuid4

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from purgatory.spark import storage, tables, words
from purgatory.spark.columns import IMPOSSIBLE, schema
from purgatory.spark.errors import PipelineError, first_line
from purgatory.spark.files import files_below, if_there, literal
from purgatory.spark.session import qualified

__all__ = ["Settings", "follow", "progress_line", "start", "windows"]

Recorded: TypeAlias = Mapping[str, Any]

_MARKER: Final = "_purgatory.json"
"""The directory with the settings, in the checkpoint and in the output. Readers take no notice of such names."""

_LONGEST: Final = 366 * 86_400

_PATIENCE: Final = 30.0
"""Seconds that a batch may take to be finished when the stream is told to stop."""

_LOOK: Final = 0.2
"""Seconds from one look at the query's progress to the next."""

_RAISED: Final = re.compile(r"(?:Exception|Error): \[\S+\] (.+)")
_CODES: Final = re.compile(r" *SQLSTATE: \w+")

_RENAMED: Final = {"expired_share": "timeout_rate", "wait_max": "waited_max"} | {
    wait: wait.replace("wait", "waited") for wait in tables.WAITS
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a stream."""

    window: float = 60.0
    """Seconds."""
    watermark: float = 120.0
    """Seconds to wait for rows that come late."""
    once: bool = False
    """Whether to read the present files, and end."""
    skip_corrupt: bool = False
    """Whether to leave out the files that cannot be read: Spark's log names them."""
    interval: float = 10.0
    """Seconds from one look for new files to the next."""


DEFAULTS = Settings()


def windows(rows: DataFrame, window: float, watermark: float) -> DataFrame:
    """Counts and waits in windows of `window` seconds, by purgatory, operation and key. Times are in seconds.

    An operation on several keys counts for each; the rows whose key is null are of the operations over all keys. It
    counts in the window in which it has *finished*: its row appears then, so that a window is complete soon after its
    end. By arrival it would be as long after it as the longest timeout is. On a stream, rows that come `watermark`
    seconds later than the latest, or more, may be dropped; on a batch, none.
    """
    finished = F.timestamp_micros(F.unix_micros("arrived_at") + F.round(F.col("waited_s") * 1e6).cast("bigint"))
    all_keys = F.array(F.lit(None).cast("string"))
    entries = rows.select(
        finished.alias("finished_at"),
        "purgatory",
        "operation",
        F.explode(F.concat(all_keys, F.array_distinct("keys"))).alias("key"),
        "outcome",
        "waited_s",
    ).withWatermark("finished_at", _interval(watermark))
    found = tables.outcomes(entries, F.window("finished_at", _interval(window)), "purgatory", "operation", "key")
    return found.select(
        F.col("window.start").alias("window_start"),
        F.col("window.end").alias("window_end"),
        *[F.col(name).alias(_RENAMED.get(name, name)) for name in found.columns if name != "window"],
    )


def start(
    spark: SparkSession,
    journal: str,
    output: str,
    checkpoint: str,
    settings: Settings = DEFAULTS,
) -> StreamingQuery:
    """Start to write the `windows` of `journal` to `output`, from the progress in `checkpoint` on.

    A file that cannot be read, or lacks a column, ends the query with an error that names it. Raises `PipelineError`,
    with nothing done, if the journal is missing, a number is impossible, or the checkpoint and the output are not of
    this stream.
    """
    window, watermark = settings.window, settings.watermark
    for name, least in (("window", 1e-3), ("watermark", 0.0), ("interval", 1e-3)):
        value = getattr(settings, name)
        if not least <= value <= _LONGEST:
            raise PipelineError(f"{name} must be a number of seconds from {least:g} to {_LONGEST}, not {value!r}")
    reader = spark.readStream.schema(schema()).option("basePath", journal).option("pathGlobFilter", "*.parquet")
    skip = str(settings.skip_corrupt).lower()
    reader = reader.option("ignoreCorruptFiles", skip).option("ignoreMissingFiles", skip)
    try:
        rows = reader.parquet(literal(journal))
        rows.schema  # noqa: B018  # a Connect server looks at the path no sooner
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise PipelineError(f"{journal} does not exist") from None
    _prepare(spark, journal, output, checkpoint, {"window": float(window), "watermark": float(watermark)})
    writer = windows(_checked(rows), window, watermark).writeStream.outputMode("append")
    writer = writer.option("checkpointLocation", checkpoint).foreachBatch(storage.batches(output, literal(output)))
    if settings.once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=_interval(settings.interval)).start()


def follow(
    spark: SparkSession,
    journal: str,
    output: str,
    checkpoint: str,
    settings: Settings = DEFAULTS,
    say: Callable[[str], object] = print,
) -> None:
    """As `start`, until the query ends, or SIGINT or SIGTERM comes. Calls `say` with a line for every batch.

    A batch that is interrupted is done again by the next run. Raises `PipelineError` also for a query that fails.
    """
    with _told_to_stop() as stop:
        query = start(spark, journal, output, checkpoint, settings)
        if settings.skip_corrupt:
            say("files that cannot be read are left out: warnings of Spark's FileScanRDD name them")
        told = _Told(say)
        try:
            ended = False
            while not ended and not stop.is_set():
                stop.wait(_LOOK)
                ended = not query.isActive
                told.of(query)
            if ended:
                query.awaitTermination()  # raises what it has failed of
            else:
                _let_finish(query)
                told.of(query)
        except (PySparkException, Py4JError, OSError) as error:
            if stop.is_set():
                return  # the signal was for Spark's process as well
            if isinstance(error, StreamingQueryException):
                raise PipelineError(f"following {journal} failed: {_reason(error)}") from error
            raise
        finally:
            _stop(query)
        if stop.is_set():
            say("stopped")


class _Told:
    """Calls `say` once for each batch of a query."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self.say = say
        self.last = -1
        self.dropped = 0

    def of(self, query: StreamingQuery) -> None:
        for progress in query.recentProgress:
            if progress["batchId"] > self.last and "addBatch" in progress["durationMs"]:  # else it was empty
                self.last = progress["batchId"]
                self.dropped += _num_dropped(progress)
                self.say(progress_line(progress, self.dropped))


def progress_line(progress: Mapping[str, Any], dropped: int) -> str:
    """A line about a batch, from its `StreamingQueryProgress`, with the number of entries `dropped` so far.

    Each operation has an entry for each of its keys and one for all; those of a window that come together are one.
    """
    read = sum(source["numInputRows"] for source in progress["sources"])  # with Connect, the sum is missing
    written = sum(state["numRowsRemoved"] for state in progress["stateOperators"])
    return (
        f"batch {progress['batchId']}: {words.count(read)} rows read, "
        f"{words.count(written)} windows written, watermark {progress['eventTime'].get('watermark', 'not yet')}, "
        f"{words.count(dropped)} entries dropped so far because they were too late"
    )


def _num_dropped(progress: Mapping[str, Any]) -> int:
    return sum(state["numRowsDroppedByWatermark"] for state in progress["stateOperators"])


def _interval(seconds: float) -> str:
    """The interval in Spark's words."""
    return f"{round(seconds * 1e6)} microseconds"


def _checked(rows: DataFrame) -> DataFrame:
    """The rows of the journal. A row without a value that every row has fails the query; the error names its file."""
    file = F.col("_metadata.file_path")
    arrived_at = F.col("arrived_at")
    impossible = {**IMPOSSIBLE, "instance": "instance is null"}
    for column, condition in impossible.items():
        wrong = F.concat(file, F.lit(f": the column {column} is missing, or has a value that it cannot have"))
        arrived_at = F.when(F.expr(condition), F.raise_error(wrong).cast("timestamp")).otherwise(arrived_at)
    return rows.withColumn("arrived_at", arrived_at)


def _prepare(spark: SparkSession, journal: str, output: str, checkpoint: str, numbers: Recorded) -> None:
    """Make the directories, and write down the stream's settings; refuse a directory with other settings."""
    paths = {"journal": journal, "output": output, "checkpoint": checkpoint}
    places = {name: qualified(spark, path) for name, path in paths.items()}
    for inner, outer in permutations(places, 2):
        if f"{places[inner]}/".startswith(f"{places[outer]}/"):
            raise PipelineError(f"{inner}, {paths[inner]}, must not be in {outer}, {paths[outer]}")
    settings = {"journal": places["journal"], "output": places["output"], **numbers}
    before = _read_marker(spark, checkpoint)
    if before is not None:
        for name, value in settings.items():
            if before.get(name) != value:
                raise PipelineError(f"{checkpoint} belongs to a stream with {name} {before.get(name)}, not {value}")
        if _read_marker(spark, output) != before:
            raise PipelineError(f"{output} is not the output of {checkpoint}: its windows are not there")
        return
    if files_below(spark, checkpoint):
        raise PipelineError(f"{checkpoint} is no checkpoint of this stream: name an empty or a new directory")
    if files_below(spark, output):
        raise PipelineError(f"{output} is not empty, and {checkpoint} is not the checkpoint that belongs to it")
    # In this order: the marker in the checkpoint completes the preparation.
    marked = json.dumps({**settings, "id": uuid4().hex})
    for place in (output, checkpoint):
        written = spark.createDataFrame([(marked,)], "value string").coalesce(1).write.mode("overwrite")
        try:
            written.text(f"{place}/{_MARKER}")  # in one file: whole or not at all
        except (Py4JJavaError, PySparkException) as error:
            raise PipelineError(f"cannot write to {place}: {first_line(error)}") from error


def _read_marker(spark: SparkSession, directory: str) -> Recorded | None:
    rows = []
    with if_there():
        rows = spark.read.text(literal(f"{directory}/{_MARKER}"), wholetext=True).collect()
    if not rows:
        return None  # it is missing, or a killed process has not finished it
    try:
        found = json.loads(rows[0].value)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise PipelineError(f"{directory}/{_MARKER} does not hold the settings of a stream")
    return found


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


def _stop(query: StreamingQuery) -> None:
    with suppress(PySparkException, Py4JError, OSError):  # Spark's process may have ended
        query.stop()


def _reason(error: StreamingQueryException) -> str:
    """The root cause of a failed query. An error of the sink has a traceback of its own around it."""
    raised = _RAISED.search(str(error))
    reason = raised[1] if raised else str(error).splitlines()[0]
    advice = "; --skip-corrupt leaves such files out" if "FAILED_READ_FILE" in str(error) else ""
    return _CODES.sub("", reason).strip(" .") + advice
