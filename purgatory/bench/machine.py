"""What measurements share: the machine and its loops, processes of servers, and what all of them take."""

import asyncio
import gc
import os
import platform
import re
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeVar

import psutil
import uvloop

import purgatory
from purgatory.bench.case import Loop

T = TypeVar("T")

_PATIENCE: Final = 60.0
"""Seconds in which a server has to start."""


def run(loop: Loop, main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on a new event loop of that kind, without a clean-up afterwards.

    The process ends at once: the cancellation of a million tasks would take longer than their measurement.
    """
    new_event_loop = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    return new_event_loop().run_until_complete(main)


def describe() -> dict[str, str]:
    """The machine and the versions."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": str(psutil.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 1024**3:.0f} GiB",
        "uvloop": version("uvloop"),
        "asyncio-purgatory": f"{purgatory.__version__}, core in {purgatory.__core__}",
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.*)$", path.read_text(), re.MULTILINE) if path.exists() else None
    return found[1] if found else platform.processor() or "unknown"


class Heartbeat:
    """Beats once an iteration of the loop, and notes the longest iteration and the garbage collector's part of it."""

    def __init__(self) -> None:
        self.longest: float = 0.0
        """Seconds of the longest iteration."""
        self.collecting: float = 0.0
        """Seconds of the garbage collector in that iteration."""
        self._collected = 0.0

    async def until(self, done: Callable[[], bool]) -> None:
        """Beat until `done()` is true, which is called once an iteration."""
        gc.callbacks.append(self._collection)
        began, before = time.perf_counter(), self._collected
        try:
            while not done():
                await asyncio.sleep(0)
                now = time.perf_counter()
                if now - began > self.longest:
                    self.longest, self.collecting = now - began, self._collected - before
                began, before = now, self._collected
        finally:
            gc.callbacks.remove(self._collection)

    def _collection(self, phase: str, _: dict[str, int]) -> None:
        self._collected += time.perf_counter() * (-1 if phase == "start" else 1)


@dataclass(frozen=True, slots=True)
class Running:
    """A server in a process of its own."""

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
