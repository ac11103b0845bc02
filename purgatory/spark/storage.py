"""The format of the pipeline's tables: the place where they are written, and the one where they are read again.

They are directories of Parquet files. Another format, such as Delta's or Iceberg's, would have its place here:

- `write` and `read` would name it, `rows.write.format("delta")` for one, instead of `parquet`.
- `batches` has the number of a stream's batch, which is the same when a batch is done again. Delta's writer takes it as
  `txnVersion`, with an identity of the stream as `txnAppId`, and leaves out a batch that it has: the batch would be
  appended to the table, without a directory and a look of its own.

Files of a trace are not tables: `trace` and `stream` read them, as a journal writes them.
"""

from collections.abc import Callable

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

__all__ = ["batches", "read", "write"]


def write(rows: DataFrame, path: str, *, by: tuple[str, ...] = ()) -> None:
    """Write a table to a directory that does not exist, with a directory in it for each value of the columns `by`."""
    rows.write.partitionBy(*by).parquet(path)


def read(spark: SparkSession, path: str) -> DataFrame:
    """Read a table. Raises `AnalysisException` if it is missing."""
    return spark.read.parquet(path)


def batches(path: str, pattern: str) -> Callable[[DataFrame, int], None]:
    """Return a function that adds a batch of a stream to a table, whole and once, as a directory `batch=N` with a file.

    `pattern` is the path as a pattern of Hadoop's. A Connect server calls the function in a process that does not have
    this library: it must need nothing of it.
    """

    def write(rows: DataFrame, batch: int) -> None:
        rows.persist()
        try:
            count = rows.count()  # also if it has been written: this brings the state up to date
            try:
                written = rows.sparkSession.read.format("binaryFile").load(f"{pattern}/batch={batch}").inputFiles()
            except AnalysisException as error:
                if error.getCondition() != "PATH_NOT_FOUND":
                    raise
                written = []
            if count and not written:  # one file, so that the batch is whole or absent
                rows.coalesce(1).write.mode("overwrite").parquet(f"{path}/batch={batch}")
        finally:
            rows.unpersist()

    return write
