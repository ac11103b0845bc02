"""The servers that are compared, each with its data in a new folder on the disk."""

import fcntl
import json
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from purgatory.bench import machine
from purgatory.bench.case import OURS, Case
from purgatory.bench.machine import Running
from purgatory.bench.web.servers import WARM

REFERENCE: Final = "reference server"
SERVERS: Final = (OURS, REFERENCE)
READ: Final = (OURS, WARM, REFERENCE)
"""Those of readers, who wait long enough for their connections to get cold."""

FOLDER: Final = Path("build", "durable-streams")
"""The folder of npm's packages and of the servers' data. It is on a disk, which `/tmp` may not be."""

_PACKAGE: Final = "@durable-streams/server"
_VERSION: Final = "0.3.7"
_SPARE: Final = 500
"""Files that a process has open beside its connections."""


def missing(case: Case) -> str | None:
    """The reason if a case cannot be measured here."""
    needed = case.parameters.get("readers", 0) + _SPARE
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard_limit != resource.RLIM_INFINITY and hard_limit < needed:
        return f"a process may have {hard_limit:,} open files (ulimit -Hn), and needs {needed:,}"
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
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="data-", dir=FOLDER, ignore_cleanup_errors=True) as data:
        if implementation == REFERENCE:
            command = ["node", str(Path(__file__).with_name("server.js")), data]
            environment = {"NODE_PATH": str(installed())}
        else:
            command = [sys.executable, "-m", "purgatory", "serve", "--data", data, "--port", "0"]
            command += ["--cool-after", "inf"] * (implementation == WARM)
            environment = {}
        with machine.running(command, environment) as server:
            yield server
