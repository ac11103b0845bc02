"""Servers in processes of their own, and what they take of the machine."""

import os
import re
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

_PATIENCE: Final = 60.0
"""Seconds in which a server has to start."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server."""

    process: psutil.Process
    port: int

    def cpu(self) -> float:
        """Its CPU time so far, in seconds."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def memory(self) -> float:
        """Its resident memory, in KiB."""
        return float(self.process.memory_info().rss) / 1024


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[Running]:
    """Run a server until the end of the block. Raises `RuntimeError` if it does not say where it listens."""
    merged = {**os.environ, **(environment or {})}
    with (
        tempfile.NamedTemporaryFile() as log,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, env=merged) as process,
    ):
        try:
            yield Running(psutil.Process(process.pid), _port(process, Path(log.name)))
        finally:
            process.kill()


def _port(process: "subprocess.Popen[bytes]", log: Path) -> int:
    """The port on which the server says that it listens."""
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until and process.poll() is None:
        if found := re.search(r"running on http://[a-z0-9.]+:(\d+)", log.read_text()):
            return int(found[1])
        time.sleep(0.02)
    raise RuntimeError(f"{process.args!r} has not started: {log.read_text()}")


def allow_open_files(count: int) -> None:
    """Let this process, and those that it starts, have so many connections. Raises `ValueError` if it may not."""
    least = count + 200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < least:
        resource.setrlimit(resource.RLIMIT_NOFILE, (least, max(hard, least)))
