"""Sessions of Spark, with the settings and the code of the pipeline: on this machine, a cluster or a Connect server.

A program that is connected to a Spark Connect server has no JVM and no SparkContext. Only this module uses them, and it
offers the other modules what they need of them.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import purgatory
from purgatory._extras import missing
from purgatory.spark.errors import PipelineError

try:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession, is_remote
    from pyspark.sql import functions as F
except ModuleNotFoundError as _error:
    raise missing(_error, "spark") from None

__all__ = [
    "Tasks",
    "check_java",
    "check_remote",
    "describe",
    "is_local",
    "parallelism",
    "session",
    "settings",
    "watching",
]

JAVA: Final = 17
"""The oldest version that Spark 4 runs on."""

_PATIENCE: Final = 30.0
"""Seconds that a Connect server may take to answer."""

_SETTINGS: Final = {
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",  # it has numbers instead of names
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # what a journal has, and other readers understand
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",  # an instance is a name, whatever it looks like
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
}

_LOGGED: Final = {
    "org.apache.spark.sql.execution.datasources.FileScanRDD": "WARN",  # it names each file that it skips
    # These log the stack of an error that the caller gets too.
    "org.apache.spark.executor.Executor": "OFF",
    "org.apache.spark.scheduler.TaskSetManager": "OFF",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter": "OFF",
    "org.apache.spark.sql.execution.streaming": "OFF",
    "org.apache.spark.util.Utils": "OFF",
}
"""The levels of Spark's classes that log more, or less, than others."""

_NOISE: Final = re.compile(
    rb"^(WARNING: Using incubator modules|Using Spark's default log4j|Setting (default|Spark) log level|"
    rb"To adjust logging level)| WARN NativeCodeLoader: "
)
"""Lines that Spark writes at each start."""

_LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    # A tenth less CPU, and a third of the memory. Most code runs too seldom to be compiled thoroughly: a tenth again.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:CompileThresholdScaling=5",
    "spark.ui.enabled": "false",  # opens no port
    "spark.sql.shuffle.partitions": "16",  # 200 tasks for a few rows take longer than the rows
}

_CLUSTER_SETTINGS: Final = {
    # Spark joins those that are small, but in a stream: it has a task and some files for each of them in every batch.
    "spark.sql.shuffle.partitions": "64",
}


def check_java() -> None:
    """Raise `PipelineError`, which tells how to install Java, unless there is one that Spark runs on."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    found = "there is none on the PATH"
    if java is not None:
        try:
            said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
        except (OSError, subprocess.TimeoutExpired) as error:
            found = f"{java} does not start: {error}"
        else:
            version = re.search(r'version "(?:1\.)?(\d+)', said)
            if version and int(version[1]) >= JAVA:
                return
            found = f"{java} is {said.splitlines()[0] if said else 'silent about its version'}"
    raise PipelineError(
        f"Spark needs Java {JAVA} or newer, and {found}. On Debian and Ubuntu: apt install openjdk-17-jre-headless; "
        "on macOS: brew install openjdk@17; elsewhere: https://adoptium.net. JAVA_HOME chooses one of several."
    )


def check_remote(remote: str) -> None:
    """Raise `PipelineError` unless `remote` is an address of a Spark Connect server, `sc://host:port`."""
    if not remote.startswith("sc://"):
        raise PipelineError(f"remote must be like sc://127.0.0.1:15002, not {remote!r}")


def is_local(master: str) -> bool:
    """Return whether `master` means the cores of this machine."""
    return master == "local" or master.startswith("local[")


def settings(master: str) -> dict[str, str]:
    """Return the settings of the pipeline for Spark on `master`, or on a Connect server."""
    return {**_SETTINGS, **(_LOCAL_SETTINGS if is_local(master) else _CLUSTER_SETTINGS)}


def parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that run at once, as far as Spark knows it."""
    if not is_remote():
        return spark.sparkContext.defaultParallelism
    # By default a range is divided into as many partitions.
    return spark.range(10_000).select(F.spark_partition_id()).distinct().count()


class Tasks(NamedTuple):
    """The tasks of the stages that Spark is running.

    For example:

        with watching(spark) as tasks:
            print(tasks().done, tasks().total)
    """

    done: int
    total: int
    running: int


def describe(spark: SparkSession, name: str) -> None:
    """Set the name, on Spark's page, of the jobs that this thread starts from now on. It has no effect on Connect."""
    if not is_remote():
        spark.sparkContext.setJobDescription(name)


@contextmanager
def watching(spark: SparkSession) -> Iterator[Callable[[], Tasks]]:
    """Return a context manager that yields a function, which returns the progress of Spark."""
    if not is_remote():
        tracker = spark.sparkContext.statusTracker()

        def look() -> Tasks:
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            found = [
                (each.numCompletedTasks, each.numTasks, each.numActiveTasks) for each in stages if each is not None
            ]
            return Tasks(*map(sum, zip(*found, strict=True))) if found else Tasks(0, 0, 0)

        yield look
        return
    latest = [Tasks(0, 0, 0)]

    def handle(stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        started = () if stages is None or done else tuple(stages)
        counts = (sum(each.num_completed_tasks for each in started), sum(each.num_tasks for each in started))
        latest[0] = Tasks(*counts, 0 if done else inflight_tasks)

    spark.registerProgressHandler(cast(Any, handle))
    try:
        yield lambda: latest[0]
    finally:
        spark.removeProgressHandler(cast(Any, handle))


@contextmanager
def session(
    master: str | None = None, extra: Mapping[str, str] | None = None, *, remote: str | None = None
) -> Iterator[SparkSession]:
    """Return a context manager that starts a session and stops it at the end.

    Args:
        master: Spark's master. By default, the cores of this machine. Executors run the Python of PYSPARK_PYTHON, or
            else the present one.
        extra: More settings of Spark, which win.
        remote: The address of a Spark Connect server, `sc://host:port`, to use instead of `master`.

    Raises:
        PipelineError: There is no suitable Java, or `remote` is not such an address or does not answer.
    """
    if remote is None:
        sessions = _started(master, extra or {})
    else:
        check_remote(remote)
        sessions = _connected(remote, extra or {})
    with tempfile.TemporaryDirectory() as directory, sessions as spark:
        if remote is not None:
            spark.addArtifacts(_packed(Path(directory)), pyfile=True)
        elif not is_local(spark.conf.get("spark.master") or ""):
            # Executors on other machines have their Python, but not this library.
            spark.sparkContext.addPyFile(_packed(Path(directory)))
        yield spark


@contextmanager
def _connected(remote: str, extra: Mapping[str, str]) -> Iterator[SparkSession]:
    """Yield a session of a Spark Connect server."""
    _check_reachable(remote)
    spark = SparkSession.builder.remote(remote).getOrCreate()
    try:
        # The others are settings of the server's process.
        ours = {name: value for name, value in settings(remote).items() if name.startswith("spark.sql.")}
        for name, value in {**ours, **extra}.items():
            spark.conf.set(name, value)
        yield spark
    finally:
        with suppress(PySparkException):  # the server may have ended
            spark.stop()


def _check_reachable(remote: str) -> None:
    """Raise `PipelineError` if no server answers, because Spark's client would silently try for ten minutes."""
    import grpc
    from pyspark.sql.connect.client import DefaultChannelBuilder  # which names the packages that are missing

    channel = DefaultChannelBuilder(remote).toChannel()
    try:
        grpc.channel_ready_future(channel).result(timeout=_PATIENCE)
    except grpc.FutureTimeoutError:
        raise PipelineError(f"no Spark Connect server has answered at {remote} for {_PATIENCE:g} s") from None
    finally:
        channel.close()


@contextmanager
def _started(master: str | None, extra: Mapping[str, str]) -> Iterator[SparkSession]:
    """Yield a session in a Spark process that belongs to this one."""
    check_java()
    os.environ.pop("SPARK_REMOTE", None)  # otherwise Spark would connect, in spite of the master
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    where = master or "local[*]"
    builder = SparkSession.builder.appName("purgatory pipeline").master(where)
    if is_local(where):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for name, value in {**settings(where), **extra}.items():
        builder = builder.config(name, value)
    with _without_noise():
        spark = builder.getOrCreate()
    try:
        assert spark.sparkContext._jvm is not None
        log4j = spark.sparkContext._jvm.org.apache.logging.log4j
        for name, level in _LOGGED.items():
            log4j.core.config.Configurator.setLevel(name, log4j.Level.toLevel(level))
        yield spark
    finally:
        with suppress(Py4JError, OSError):  # a signal to the whole group of processes has ended Spark's first
            spark.stop()


@contextmanager
def _without_noise() -> Iterator[None]:
    """Filter the lines out of stderr that Spark's process writes at each start."""
    reading, writing = os.pipe()
    before = os.dup(2)
    threading.Thread(target=_relay, args=(reading, before), daemon=True).start()
    os.dup2(writing, 2)
    os.close(writing)
    try:
        yield
    finally:
        os.dup2(before, 2)


def _relay(reading: int, writing: int) -> None:
    with os.fdopen(reading, "rb") as lines, os.fdopen(writing, "wb", 0) as stderr:
        for line in lines:
            if not _NOISE.search(line):
                stderr.write(line)


def _packed(directory: Path) -> str:
    """Return a file with this library that executors can import from."""
    package = Path(purgatory.__file__).parent
    packed = directory / "packed" / package.name
    shutil.copytree(package, packed, ignore=shutil.ignore_patterns("__pycache__", "measured"))
    return shutil.make_archive(str(directory / package.name), "zip", packed.parent)
