"""Spark's own servers as processes on loopback: a Connect server, and a standalone cluster."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

_SPARK = Path(pyspark.__file__).parent
_ENVIRONMENT = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}


@contextmanager
def connect_server(
    directory: Path, before: Sequence[str] = (), settings: dict[str, str] | None = None
) -> Iterator[str]:
    """A Spark Connect server with two cores, which works in a directory. Yields its address, `sc://127.0.0.1:…`.

    `before` are words of a command that starts the server.
    """
    given = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
        "spark.log.level": "INFO",  # the server says so where it is
        **(settings or {}),
    }
    conf = [word for name, value in given.items() for word in ("--conf", f"{name}={value}")]
    command = [*before, str(_SPARK / "bin" / "spark-submit"), "--master", "local[2]", *conf]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    with _running(command, directory, r"Spark Connect server started at: .*?(\S+)$") as address:
        yield f"sc://{address}"


@contextmanager
def standalone_cluster(directory: Path, workers: int = 2) -> Iterator[str]:
    """A master and workers with a core each. Yields the master's address, `spark://127.0.0.1:…`."""
    host = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    launcher = str(_SPARK / "bin" / "spark-class")
    with ExitStack() as stack:
        command = [launcher, "org.apache.spark.deploy.master.Master", *host]
        address = stack.enter_context(_running(command, directory / "master", r"Starting Spark master at (\S+)$"))
        for number in range(workers):
            place = directory / f"worker-{number}"
            command = [launcher, "org.apache.spark.deploy.worker.Worker", *host, "-c", "1", "-m", "1g"]
            command += ["-d", str(place), address]
            stack.enter_context(_running(command, place, r"(Successfully registered) with master"))
        yield address


@contextmanager
def _running(command: Sequence[str], directory: Path, said: str) -> Iterator[str]:
    """Run a process that says this when it is ready. Yields the group of the pattern."""
    directory.mkdir(parents=True, exist_ok=True)
    log = directory.with_name(f"{directory.name}.log")
    with log.open("w") as written:
        process = subprocess.Popen(
            command, cwd=directory, env=os.environ | _ENVIRONMENT, stderr=written, start_new_session=True
        )
    try:
        while (ready := re.search(said, log.read_text(), re.MULTILINE)) is None:
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        yield ready[1]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
