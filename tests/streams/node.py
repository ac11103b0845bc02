"""Node.js with the packages of the protocol's authors: the conformance suite, the client, the reference server."""

import fcntl
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers import program

OFFICIAL = Path(__file__).parent / "official"
INSTALLED = Path(__file__).parents[2] / "build" / "durable-streams"
"""Where npm installs them. It is not tracked."""


def installed() -> Path:
    """The folder with the packages, which are installed if they are not. Without npm the test is skipped."""
    npm = program("npm", "npm")
    INSTALLED.mkdir(parents=True, exist_ok=True)
    with (INSTALLED / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of the processes of a test run, one installs
        done = INSTALLED / "installed.json"
        wanted = (OFFICIAL / "package.json").read_text()
        if not done.exists() or done.read_text() != wanted:
            shutil.copy(OFFICIAL / "package.json", INSTALLED)
            subprocess.run([npm, "install", "--no-audit", "--no-fund"], cwd=INSTALLED, check=True, timeout=600)
            done.write_text(wanted)
        for source in (*OFFICIAL.glob("*.ts"), *OFFICIAL.glob("*.mjs")):
            shutil.copy(source, INSTALLED)
    return INSTALLED


@contextmanager
def reference_server() -> Iterator[str]:
    """The URL of a reference server with its streams in memory, for as long as the context lasts."""
    command = [program("node", "nodejs"), "reference.mjs"]
    with subprocess.Popen(command, cwd=installed(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()  # that ends it
