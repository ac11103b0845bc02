"""Sessions of Spark, on this machine or on a cluster, with the settings and the code of the pipeline."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

import purgatory
from purgatory.spark.errors import PipelineError

__all__ = ["check_java", "is_local", "session", "settings"]

JAVA: Final = 17
"""The oldest version that Spark 4 runs on."""

_SETTINGS: Final = {
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # what a journal has, and other readers understand
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",  # an instance is a name, whatever it looks like
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
}

_LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",  # opens no port
    "spark.sql.shuffle.partitions": "16",  # 200 tasks for a few rows take longer than the rows
}


def check_java() -> None:
    """Raise `PipelineError`, which tells how to install it, unless there is a Java that Spark runs on."""
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
        "on macOS: brew install openjdk@17; elsewhere: https://adoptium.net. JAVA_HOME says which one to take."
    )


def is_local(master: str) -> bool:
    """Whether `master` is this machine's own cores."""
    return master == "local" or master.startswith("local[")


def settings(master: str) -> dict[str, str]:
    """The settings of the pipeline for Spark on `master`."""
    local = _LOCAL_SETTINGS if is_local(master) else {}
    return {**_SETTINGS, **local}


@contextmanager
def session(master: str | None = None, extra: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session, ended with the context. `extra` are further settings of Spark, which win.

    `master` is its master: this machine's cores, if it is `None` and `spark-submit` has named no other. Executors run
    the Python of PYSPARK_PYTHON, or else the one that runs this. Raises as `check_java`.
    """
    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("purgatory pipeline")
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has started this, and has the master
    where = master or ("spark-submit's" if submitted else "local[*]")
    if master is not None or not submitted:
        builder = builder.master(where).config("spark.ui.showConsoleProgress", str(sys.stderr.isatty()).lower())
    local = is_local(where)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for name, value in {**settings(where), **(extra or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        with tempfile.TemporaryDirectory() as directory:
            if not local:
                # Executors on other machines have their Python, but not this library.
                spark.sparkContext.addPyFile(_packed(Path(directory)))
            yield spark
    finally:
        with suppress(Py4JError, OSError):  # a signal to the whole group of processes has ended Spark's first
            spark.stop()


def _packed(directory: Path) -> str:
    """This library in a file that executors can import from."""
    package = Path(purgatory.__file__).parent
    packed = directory / "packed" / package.name
    shutil.copytree(package, packed, ignore=shutil.ignore_patterns("__pycache__", "measured"))
    return shutil.make_archive(str(directory / package.name), "zip", packed.parent)
