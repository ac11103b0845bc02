"""A real Spark Connect server on loopback, a process."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.pipeline.cluster import SPARK, start

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def running(directory: Path) -> Iterator[str]:
    """A server on two cores, with its log in `directory`. Yields its address, `sc://127.0.0.1:…`."""
    if find_spec("grpc") is None:
        message = "needs Spark Connect's client: pip install 'pyspark[connect]'"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
        "spark.log.level": "INFO",  # the server says so where it is
    }
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command = [str(SPARK / "bin" / "spark-submit"), "--master", "local[2]", *conf, "--class", SERVER]
    with ExitStack() as stack:
        wanted = "Spark Connect server started at: "
        said = start(stack, directory, "connect", command, wanted, PYSPARK_PYTHON=sys.executable)
        yield f"sc://{said.split()[-1]}"
