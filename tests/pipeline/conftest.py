"""The fixtures of the pipeline's tests."""

import logging
import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from purgatory.spark.session import session

# Spark's processes, also those that tests start, live for seconds: compiling more thoroughly would not pay.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests, for it takes seconds to start. Without Java 17 this says where to get it."""
    with session("local[2]", {"spark.sql.shuffle.partitions": "4"}) as spark:
        yield spark


@pytest.fixture(autouse=True)
def _loggers_as_they_were() -> Iterator[None]:
    """Let PySpark's loggers propagate again, which stop it at the first error of a query.

    Pytest gives its handler to loggers that do not propagate, and PySpark's ones change a handler's format to JSON, in
    which later tests of the process find other texts.
    """
    yield
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logger = logging.Logger.manager.loggerDict.get(name)  # not `getLogger`, which would make one of another class
        if isinstance(logger, logging.Logger):
            logger.propagate = True
