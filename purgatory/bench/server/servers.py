"""The servers that are compared, each with its data in a new folder on the disk, and what is asked of them."""

import asyncio
import fcntl
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from purgatory.bench import machine
from purgatory.bench.case import OURS, Case
from purgatory.bench.client import Client, WrongAnswer
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

OFFSET: Final = b"stream-next-offset"

_IDLE: Final = 0.1
"""The share of a core that a server takes while it has nothing to do."""
_PATIENCE: Final = 120.0
"""Seconds after which a server ought to have nothing to do any more."""


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


def get(stream: str, **parameters: str) -> bytes:
    """A read."""
    query = "&".join(f"{name}={quote(value)}" for name, value in parameters.items())
    return f"GET /v1/stream/{stream}?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def head_of_post(stream: str, size: int, method: str = "POST") -> bytes:
    """An append of that many bytes, without them."""
    lines = [f"{method} /v1/stream/{stream} HTTP/1.1", "Host: localhost", "Content-Type: text/plain"]
    return "\r\n".join([*lines, f"Content-Length: {size}", "", ""]).encode()


async def ask(connection: Client, data: bytes, *expected: int) -> None:
    """Send a request, and wait for its answer. Raises `WrongAnswer` if its status is none of those expected."""
    await connection.send(data)
    check(connection, *expected)


def check(connection: Client, *expected: int) -> None:
    """Raise `WrongAnswer` if the status of the answer is none of those expected."""
    if connection.status not in expected:
        raise WrongAnswer(f"{connection.status} {connection.body[:200]!r}, and not {expected}")


async def create(connection: Client, stream: str) -> None:
    """Create a stream of text."""
    await ask(connection, head_of_post(stream, 0, "PUT"), 201)


async def read(connection: Client, stream: str) -> bytes:
    """All that is in a stream."""
    parts = []
    offset = "-1"
    while True:
        await ask(connection, get(stream, offset=offset), 200)
        parts.append(connection.body)
        offset = connection.headers[OFFSET].decode()
        if connection.headers.get(b"stream-up-to-date") == b"true":
            return b"".join(parts)


async def quiet(server: Running) -> None:
    """Wait until the server has done what there is to do: it takes no more CPU. Raises `WrongAnswer`."""
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        before, began = server.cpu(), time.monotonic()
        await asyncio.sleep(0.3)
        if server.cpu() - before < _IDLE * (time.monotonic() - began):
            return
    raise WrongAnswer(f"the server is still busy after {_PATIENCE:.0f} seconds")
