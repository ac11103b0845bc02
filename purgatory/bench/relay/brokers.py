"""A Redis and a PostgreSQL as they are installed, each on a free port with its data in a new folder.

What floods them comes with them: `redis-benchmark` and `pgbench`.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from purgatory import relay
from purgatory.bench.case import OURS, Case
from purgatory.bench.relay.publisher import broker

REDIS: Final = f"{OURS}, Redis"
POSTGRES: Final = f"{OURS}, PostgreSQL"
THREADS: Final = f"{OURS}, threads"

_NEEDED: Final = {
    REDIS: ("redis-server", ("redis-server", "redis-benchmark")),
    POSTGRES: ("postgresql", ("initdb", "postgres", "pgbench")),
}
"""The package that brings each server, and its programs."""

_FLOODING: Final = 16
"""Connections that flood a server."""
_PAYLOAD: Final = "x" * 50


def _path(program: str) -> str | None:
    # Debian keeps most of PostgreSQL's programs off the PATH.
    folders = [os.environ.get("PATH", os.defpath), *map(str, Path("/usr/lib/postgresql").glob("*/bin"))]
    return shutil.which(program, path=os.pathsep.join(folders))


def missing(case: Case) -> str | None:
    """The reason if a case cannot be measured here."""
    package, programs = _NEEDED.get(case.implementation, ("", ()))
    absent = [each for each in programs if _path(each) is None]
    return f"needs {', '.join(absent)}: sudo apt-get install {package}" if absent else None


@dataclass(frozen=True, slots=True)
class Serving:
    """A broker. Between threads there is no server, and nothing to flood."""

    broker: relay.Broker
    url: str = ""
    server: psutil.Process | None = None
    flooding: list[str] | None = None
    """The command that publishes messages as fast as possible."""

    def cpu(self) -> float:
        """The CPU of the server's processes so far, in seconds."""
        if self.server is None:
            return 0.0
        total = float(sum(self.server.cpu_times()[:4]))  # those of its children that have ended are in it
        for child in self.server.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                total += sum(child.cpu_times()[:2])
        return total

    def flood(self) -> float:
        """Publish as fast as possible. Returns how many messages a second the server has taken."""
        if self.flooding is None:
            return 0.0
        done = subprocess.run(self.flooding, capture_output=True, text=True, check=True)
        found = re.search(r"(?<=tps = )[\d.]+|[\d.]+(?= requests per second)", done.stdout)
        assert found is not None, done.stdout
        return float(found[0])


@contextmanager
def serving(implementation: str, messages: int) -> Iterator[Serving]:
    """Run the broker of that name, which so many messages will flood, until the end of the block.

    Raises `RuntimeError` if its server does not start.
    """
    if implementation == THREADS:
        yield Serving(broker(""))
        return
    # Not below a folder of root's: PostgreSQL refuses to be root.
    user = "postgres" if implementation == POSTGRES and os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="purgatory-bench-", ignore_cleanup_errors=True) as folder:
        if user is not None:
            shutil.chown(folder, user)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        program, *others = (str(_path(each)) for each in _NEEDED[implementation][1])
        if implementation == REDIS:
            url = f"redis://127.0.0.1:{port}"
            command = [program, "--port", port, "--bind", "127.0.0.1", "--save", ""]
            flooding = [others[0], "-p", port, "-q", "-c", str(_FLOODING), "-n", str(messages)]
            flooding += ["PUBLISH", "purgatory", _PAYLOAD]
        else:
            url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
            initialize = [program, "-D", "data", "-A", "trust", "-U", "postgres", "--locale=C", "--no-sync"]
            subprocess.run(initialize, cwd=folder, user=user, check=True, stdout=subprocess.DEVNULL)
            command = [others[0], "-D", "data", "-p", port, "-h", "127.0.0.1", "-k", "", "-N", "200"]
            script = Path(folder, "notify.sql")
            script.write_text(f"SELECT pg_notify('purgatory', '{_PAYLOAD}');")
            flooding = [others[1], url, "-n", "-f", str(script), "-c", str(_FLOODING)]
            flooding += ["-t", str(messages // _FLOODING)]
        environment = {**os.environ, "LC_ALL": "C"}
        with subprocess.Popen(
            command, cwd=folder, env=environment, user=user, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                assert process.stdout is not None
                if not any("ready to accept connections" in line.lower() for line in process.stdout):
                    raise RuntimeError(f"{command[0]} has not started")
                yield Serving(broker(url), url, psutil.Process(process.pid), flooding)
            finally:
                process.send_signal(signal.SIGINT)
