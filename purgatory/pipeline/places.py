"""The directories in which cubes lie: on this machine, or wherever Hadoop's file systems reach, through Spark.

A path with a scheme is Hadoop's, as the journal's path is: `s3a://`, `abfss://`, `gs://`, `hdfs://`, with the settings
and the credentials that Spark has. Only Spark's readers and writers are used, since a program that is connected to a
Spark Connect server has no JVM, and may not reach the files itself.
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession, is_remote
from pyspark.sql import functions as F

from purgatory.journal.files import sync
from purgatory.spark.errors import PipelineError, first_line

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_FILE: Final = re.compile(r"file:(//)?(?=/)")
_VERSION: Final = re.compile(r"/version=(\d+)-")
_GLOB: Final = "{date=*,date=*/version=*,batch=*,batches=*}/*.parquet"
_OPTIONS: Final = {"maxRecordsPerFile": 0, "mapreduce.fileoutputcommitter.marksuccessfuljobs": False}
_GONE: Final = re.compile(r"FILE_NOT_EXIST|PATH_NOT_FOUND|FileNotFoundException|No such file")
_ATTEMPTS: Final = 5
"""How often a directory is listed that changes meanwhile."""


def needs_spark(path: str) -> bool:
    """Return whether a cube's path has a scheme that only Spark knows. `file:` means this machine, or the server's."""
    return _SCHEME.match(path) is not None and (is_remote() or _FILE.match(path) is None)


def place(path: str, spark: SparkSession | None = None) -> "LocalPlace | SparkPlace":
    """Return the place at `path`: as `spark` sees it, or without that on this machine. Raises `PipelineError`."""
    if spark is not None:
        return SparkPlace(path, spark)
    return LocalPlace(local(path))


def local(path: str) -> Path:
    """Return a path on this machine. Raises `PipelineError` for one that only Spark knows."""
    if _SCHEME.match(path) and not _FILE.match(path):
        raise PipelineError(f"{path} cannot be used without Spark")
    return Path(_FILE.sub("", path))


class LocalPlace:
    """A directory on this machine, which needs no Spark. A directory below has one file, `cube.parquet`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> list[str]:
        """Return the names of its files."""
        # `Path.glob` raises for a directory that vanishes meanwhile.
        patterns = "*=*/*.parquet", "date=*/version=*/*.parquet"
        return sorted(Path(name).as_posix() for each in patterns for name in glob(each, root_dir=self._path))

    def read(self, names: Sequence[str]) -> list[pa.Table]:
        """Return the rows of each of these files."""
        tables = []
        for name in names:
            with (self._path / name).open("rb") as file:
                tables.append(pq.read_table(file))
        return tables

    def replace(self, table: pa.Table, directory: str) -> None:
        """Write the rows as one file. Readers find the old one or the new one."""
        below = self._path / directory
        with replaced(below / "cube.parquet") as hidden:
            pq.write_table(table, hidden, compression="zstd")
        for copied in below.glob("version=*"):  # from a place of Spark's, where it would hide this file
            shutil.rmtree(copied)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield the name of a hidden file to write, which then appears at `path`, whole, also after a loss of power."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{uuid4().hex[:8]}{path.suffix}")
    yield hidden
    sync(hidden)
    hidden.replace(path)
    sync(path.parent)


class SparkPlace:
    """A directory on a file system of Hadoop's.

    An object store can neither rename nor replace a directory at once, so each writing of a day is a directory of its
    own, `date=DAY/version=N-…`, with one file, which appears whole. Readers take the newest version: they find the old
    rows until the new ones are all there. Then the older versions are emptied, and a reader that has just listed them
    lists again. A writer that is killed in between leaves both versions. Our readers don't mind, and the next writer
    removes the older one. Others, who read `**/*.parquet`, see the rows of both until then.
    """

    def __init__(self, path: str, spark: SparkSession) -> None:
        self._path = path.rstrip("/")
        self._spark = spark

    def names(self) -> list[str]:
        """Return the names of its files, none of which is opened."""
        return sorted(map(self._name, self._list()))

    @staticmethod
    def _name(file: str) -> str:
        # Spark writes the path in its own way, with a host that was left out, or `file:///` for a path without scheme.
        return re.sub(r".*/(?=(date|batch|batches)=[^/]*/)", "", unquote(urlsplit(file).path))

    def _list(self) -> list[str]:
        reason = ""
        for _ in range(_ATTEMPTS):
            try:
                return self._spark.read.format("binaryFile").load(f"{literal(self._path)}/{_GLOB}").inputFiles()
            except (PySparkException, Py4JError) as error:
                if isinstance(error, AnalysisException) and error.getCondition() == "PATH_NOT_FOUND":
                    return []
                reason = first_line(error)
                if not _GONE.search(reason):  # a writer has emptied an older version meanwhile
                    break
        raise PipelineError(f"{self._path} cannot be used: {reason}")

    def read(self, names: Sequence[str]) -> list[pa.Table]:
        """Return the rows of each of these files."""
        paths = [literal(f"{self._path}/{name}") for name in names]
        # With this option, names of directories are no columns.
        reader = self._spark.read.option("mergeSchema", True).option("recursiveFileLookup", True)
        try:
            table = reader.parquet(*paths).select("*", F.expr("_metadata.file_path AS path")).toArrow()
        except (PySparkException, Py4JError) as error:
            if _GONE.search(str(error)):
                raise FileNotFoundError(f"{self._path} was written meanwhile: {first_line(error)}") from None
            raise
        rows: dict[str, list[int]] = {}
        for number, path in enumerate(table["path"].to_pylist()):
            rows.setdefault(self._name(path), []).append(number)
        table = table.drop_columns("path")
        return [table.take(pa.array(rows.get(name, []), pa.int64())) for name in names]

    def replace(self, table: pa.Table, directory: str) -> None:
        """Write the rows as the newest version, then empty the older ones."""
        older = [name for name in self.names() if name.startswith(f"{directory}/")]
        last = max((int(match[1]) for name in older if (match := _VERSION.search(name))), default=0)
        # In one file, so that it is whole or absent.
        writer = self._spark.createDataFrame(table).coalesce(1).write.options(**_OPTIONS, compression="zstd")
        writer.parquet(f"{self._path}/{directory}/version={last + 1:09}-{uuid4().hex[:8]}")
        for name in dict.fromkeys(re.sub(r"(/version=[^/]*)/.*", r"\1", name) for name in older):
            # Spark's writer deletes what is there, and opens no file for a partition that has no rows.
            nothing = self._spark.createDataFrame([], "nothing int, of string").write.partitionBy("of")
            nothing.options(**_OPTIONS).mode("overwrite").parquet(f"{self._path}/{name}")


def literal(path: str) -> str:
    """Return `path` with escapes for the characters that are patterns to Hadoop."""
    return re.sub(r"([{}\[\]*?\\])", r"\\\1", path)
