"""A real cluster of Spark's own kind on loopback: a master and workers, each a process."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import pyspark

SPARK = Path(pyspark.__file__).parent


@contextmanager
def running(directory: Path, workers: int = 2) -> Iterator[str]:
    """A master, and workers of one core each, with their files in `directory`. Yields the master's URL."""
    with ExitStack() as stack:
        listening = _start(stack, directory, "master.Master", ["--port", "0"], "Starting Spark master at ")
        url = listening.split()[-1]
        for number in range(workers):
            options = ["--cores", "1", "--memory", "1g", "--work-dir", str(directory / f"work-{number}"), url]
            _start(stack, directory, "worker.Worker", options, "Successfully registered with master ")
        yield url


def _start(stack: ExitStack, directory: Path, name: str, options: list[str], wanted: str) -> str:
    command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
    return start(stack, directory, name, [*command, "--host", "127.0.0.1", "--webui-port", "0", *options], wanted)


def start(stack: ExitStack, directory: Path, name: str, command: list[str], wanted: str, **variables: str) -> str:
    """Start a process for as long as `stack` lasts. Returns the line of its log that says that it is ready."""
    # Its executors must run this Python because they are told to, and not because it is the first on the PATH.
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOG_DIR": str(directory), "PATH": "/usr/bin:/bin"} | variables
    log = directory / f"{name}-{uuid4().hex}.log"
    with log.open("w") as written:
        process = subprocess.Popen(command, cwd=directory, env=environment, stderr=written, start_new_session=True)
    stack.callback(process.wait)
    stack.callback(os.killpg, process.pid, signal.SIGKILL)
    waited = threading.Event()
    while process.poll() is None:
        for line in log.read_text().splitlines():
            if wanted in line:
                return line
        waited.wait(0.1)
    raise RuntimeError(f"{name} did not start: {log.read_text()}")
