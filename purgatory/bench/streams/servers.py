"""The servers that are compared, each in a process of its own, with its data in a new folder on the disk."""

import fcntl
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from purgatory.bench.case import OURS, Case

__all__ = ["FOLDER", "REFERENCE", "SERVERS", "Running", "installed", "missing", "running"]

REFERENCE: Final = "reference server"
SERVERS: Final = (OURS, REFERENCE)

FOLDER: Final = Path("build", "durable-streams")
"""The folder of npm's packages and of the servers' data. It is on a disk, which `/tmp` may not be."""

_PACKAGE: Final = "@durable-streams/server"
_VERSION: Final = "0.3.7"
_PATIENCE: Final = 60.0
"""Seconds in which a server has to start."""
_SPARE: Final = 500
"""Files that a process has open beside its connections."""


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


def missing(case: Case) -> str | None:
    """The reason if a case cannot be measured here."""
    needed = case.parameters.get("readers", 0) + _SPARE
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < needed:
        return f"a process may have {most:,} open files (ulimit -Hn), and needs {needed:,}"
    if case.implementation == REFERENCE:
        for program in ("node", "npm"):
            if shutil.which(program) is None:
                return f"needs {program}: sudo apt-get install nodejs npm"
    return None


def installed(folder: Path = FOLDER) -> Path:
    """The packages of the reference server, which npm installs into `folder` if they are not there."""
    folder.mkdir(parents=True, exist_ok=True)
    packages = folder.resolve() / "node_modules"
    about = packages / _PACKAGE / "package.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the tests of the server install into the same folder
        if not about.exists() or json.loads(about.read_text())["version"] != _VERSION:
            command = ["npm", "install", "--no-save", "--no-audit", "--no-fund", f"{_PACKAGE}@{_VERSION}"]
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=600)
    return packages


@contextmanager
def running(implementation: str) -> Iterator[Running]:
    """Run the server of that name until the end of the block. Raises `RuntimeError` if it does not start."""
    environment = dict(os.environ)
    if implementation == REFERENCE:
        environment["NODE_PATH"] = str(installed())
        command = ["node", str(Path(__file__).with_name("server.js"))]
    else:
        command = [sys.executable, "-m", "purgatory", "serve"]
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="data-", dir=FOLDER, ignore_cleanup_errors=True) as data:
        command += [data] if implementation == REFERENCE else ["--data", data, "--port", "0"]
        log = Path(data) / "log"
        with (
            log.open("w") as written,
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=written, env=environment) as process,
        ):
            try:
                yield Running(psutil.Process(process.pid), _port(process, log))
            finally:
                process.kill()


def _port(process: "subprocess.Popen[bytes]", log: Path) -> int:
    """The port on which the server says that it listens."""
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until and process.poll() is None:
        if found := re.search(r"running on http://(?:127\.0\.0\.1|localhost):(\d+)", log.read_text()):
            return int(found[1])
        time.sleep(0.02)
    raise RuntimeError(f"{process.args!r} has not started: {log.read_text()}")
