"""The files of a trace, as Spark lists and reads them."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from purgatory.journal.compact import DATA, MANIFESTS, Entry, counting
from purgatory.spark.columns import COLUMNS
from purgatory.spark.errors import PipelineError

__all__ = ["Place", "files_below", "if_there", "instance_of", "literal", "places", "refuse_existing"]


@dataclass(frozen=True, slots=True)
class Place:
    """A directory with files of a trace."""

    path: str
    files: tuple[str, ...]
    wanted: tuple[str, ...]
    """The files with rows of the trace. The others have the same rows."""

    def rows(self, spark: SparkSession, kinds: Mapping[str, str]) -> Iterator[DataFrame]:
        """The rows of the wanted files that can be read, those of the same odd types together."""
        by_kinds: dict[str, set[str]] = {}
        for file in self.wanted:
            if file in kinds:
                by_kinds.setdefault(kinds[file], set()).add(file)
        for each, some in by_kinds.items():
            if len(some) == len(self.files):
                paths = [self.path]
            else:  # whole directories, where that is possible: Spark looks at each path that it is given
                directories = {file.rpartition("/")[0] for file in some}
                partial = {file.rpartition("/")[0] for file in self.files if file not in some}
                paths = [*(directories - partial), *(file for file in some if file.rpartition("/")[0] in partial)]
            yield _read(spark, self.path, json.loads(each), [literal(path) for path in paths])


def places(spark: SparkSession, path: str) -> list[Place]:
    """The files of a trace: those that a journal has written, and joined ones (`purgatory.journal.compact`)."""
    small = files_below(spark, path, "*.parquet")  # listed before the manifests are read: see there
    if small is None:
        raise PipelineError(f"{path} does not exist")
    manifests = _manifests(spark, path)
    if not manifests:
        return [Place(path, small, small)]
    # Listed last: they were there before their manifests.
    joined = files_below(spark, f"{path}/{DATA}", "*.parquet") or ()
    names, replaced = counting(manifests)
    counted = set(names)
    return [
        Place(path, small, tuple(file for file in small if _name(file) not in replaced)),
        Place(f"{path}/{DATA}", joined, tuple(file for file in joined if _name(file) in counted)),
    ]


def _manifests(spark: SparkSession, path: str) -> list[list[Entry]]:
    """The manifests of joined files, in order of their names."""
    reader = spark.read.schema("file string, replaces array<string>")
    found = []
    with if_there():
        found = reader.json(literal(f"{path}/{MANIFESTS}")).select("*", "_metadata.file_name").collect()
    by_name: dict[str, list[Entry]] = defaultdict(list)
    for file, replaces, name in found:
        by_name[name].append(Entry(file, tuple(replaces)))
    return [by_name[name] for name in sorted(by_name)]


def _name(file: str) -> str:
    """The file from the directory of its day on."""
    return "/".join(file.rsplit("/", 3)[1:])


@contextmanager
def if_there() -> Iterator[None]:
    """Leave the block if a path that Spark is to read in it does not exist."""
    try:
        yield
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise


def files_below(spark: SparkSession, path: str, pattern: str = "*") -> tuple[str, ...] | None:
    """The files in a directory and below it, without hidden ones, of names like `pattern`; `None` if it is missing."""
    options = {"recursiveFileLookup": "true", "pathGlobFilter": pattern}
    with if_there():
        found = spark.read.format("binaryFile").options(**options).load(literal(path))
        return tuple(map(unquote, found.inputFiles()))
    return None


def refuse_existing(spark: SparkSession, path: str) -> None:
    """Raise `PipelineError` if `path` exists already."""
    with if_there():
        spark.read.format("binaryFile").load(literal(path)).schema  # noqa: B018
        raise PipelineError(f"{path} exists already: name another directory")


def literal(path: str) -> str:
    """`path` with escapes for the characters that are patterns to Hadoop."""
    return re.sub(r"([{}\[\]*?\\])", r"\\\1", path)


def instance_of(file: str) -> str | None:
    """The instance that the directories of a file name."""
    for directory in reversed(file.split("/")[:-1]):
        if directory.startswith("instance="):
            return unquote(directory.removeprefix("instance="))
    return None


def _read(spark: SparkSession, path: str, kinds: Mapping[str, str], files: Sequence[str]) -> DataFrame:
    """The rows of files in the trace `path` that are read with these types of Spark's, cast to those of `COLUMNS`."""
    columns = ", ".join(f"{name} {kinds.get(name, kind)}" for name, kind in COLUMNS.items())
    reader = spark.read.schema(columns).option("basePath", path).option("pathGlobFilter", "*.parquet")
    return reader.parquet(*files).select(*[_cast(name, kinds.get(name, kind)) for name, kind in COLUMNS.items()])


def _cast(name: str, kind: str) -> Column:
    if kind == COLUMNS[name]:
        return F.col(name)
    if COLUMNS[name] == "timestamp":  # nanoseconds, which Spark reads as numbers
        return F.expr(f"timestamp_micros({name} div 1000)").alias(name)
    return F.col(name).cast(COLUMNS[name]).alias(name)
