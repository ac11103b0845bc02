"""What a relay costs a process whose keys change in others: every process hears of every change.

The process that is measured hears of keys that none of its operations watch, and then of keys that one operation each
watches, which completes. The publisher is a process of its own, which has the connections of all other processes too;
between threads it is a thread. CPU is that of the thread that hears.

The brokers are a Redis and a PostgreSQL as they are installed, each on a free port with its data in a new folder. What
floods them afterwards comes with them: `redis-benchmark` and `pgbench`.
"""

import asyncio
import gc
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from purgatory import DelayedOperationPurgatory
from purgatory.bench.case import OURS, Case, Figures, Metric, Scenario
from purgatory.bench.relay import publisher
from purgatory.bench.scenarios.pending import TIMEOUT, Operation
from purgatory.relay import Broker, Relay

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
_PATIENCE: Final = 10.0
"""Seconds in which all has to be heard after the publisher's end."""


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

    broker: Broker
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
        yield Serving(publisher.broker(""))
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
                yield Serving(publisher.broker(url), url, psutil.Process(process.pid), flooding)
            finally:
                process.send_signal(signal.SIGINT)


class Wait(Operation):
    """Completes when its key is checked first. What the answer to a client costs is measured elsewhere."""

    __slots__ = ("is_new",)

    def __init__(self) -> None:
        super().__init__(TIMEOUT)
        self.is_new = True

    def try_complete(self) -> bool:
        return not self.is_new and self.force_complete()


async def run(case: Case) -> Figures:
    """Hear of keys that are not watched, and of keys that are; then flood the broker."""
    with serving(case.implementation, case.parameters["times"]) as served:
        heard_us, server_us = await _hear(served, case.parameters, "other")
        woken_us, _ = await _hear(served, case.parameters, "key")
        async with AsyncExitStack() as stack:
            for _ in range(case.parameters["processes"]):
                await stack.enter_async_context(served.broker.connect(len))
            taken = await asyncio.to_thread(served.flood)
    return {
        "heard_us": heard_us,
        "woken_us": woken_us,
        "a_core": 1e6 / heard_us,
        "server_us": server_us,
        "taken": taken,
    }


async def _hear(served: Serving, parameters: Any, watched: str) -> tuple[float, float]:
    """The CPU of a change in this process, and of a message in the server, in µs."""
    numbers = [parameters[name] for name in ("messages a second", "keys each", "seconds", "processes")]
    messages, keys, seconds, _ = numbers
    total = messages * seconds
    purgatory = DelayedOperationPurgatory()
    async with purgatory, Relay(purgatory, broker=served.broker) as relay:
        while relay.statistics().unchecked:
            await asyncio.sleep(0.01)
        waits = [purgatory.try_complete_else_watch(Wait(), [f"{watched}-{n}"]) for n in range(total * keys)]
        for wait in waits:
            wait.is_new = False
        gc.collect()
        gc.freeze()  # collections of the objects that exist already are not measured
        publishing = asyncio.ensure_future(_publish(served, *numbers))
        missed = await _until(relay, 1, publishing, 0.001)
        cpu, server = time.thread_time(), served.cpu()
        await _until(relay, total, publishing, 0.02)
        cpu, server = time.thread_time() - cpu, served.cpu() - server
        await publishing
        if purgatory.num_delayed != (0 if watched == "key" else total * keys):
            # As soon as it is behind by 10,000 keys, it checks all that are watched.
            raise RuntimeError(f"this machine is too slow to hear of {messages * keys:,} changes a second")
    return 1e6 * cpu / ((total - missed) * keys), 1e6 * server / (total - missed)


async def _until(relay: Relay, messages: int, publishing: "asyncio.Future[None]", pause: float) -> int:
    """Look each `pause` until so many messages are heard and their keys checked. Returns how many are heard."""
    until = math.inf
    while (heard := relay.statistics()).received < messages or heard.unchecked:
        await asyncio.sleep(pause)
        if publishing.done():
            publishing.result()
            until = min(until, time.monotonic() + _PATIENCE)
            if time.monotonic() > until:
                raise RuntimeError(f"of {messages} messages only {heard.received} were heard")
    return heard.received


async def _publish(served: Serving, *numbers: int) -> None:
    if not served.url:
        await asyncio.to_thread(lambda: asyncio.run(publisher.publish(served.broker, *numbers)))
        return
    command = [sys.executable, "-P", str(Path(publisher.__file__)), served.url, *map(str, numbers)]
    process = await asyncio.create_subprocess_exec(*command)
    if await process.wait():
        raise RuntimeError("the publisher has failed")


RELAY = Scenario(
    name="relay",
    title="Relay: a process hears of all changes",
    implementations=(REDIS, POSTGRES, THREADS),
    full=[
        {"messages a second": messages, "keys each": keys, "processes": processes, "seconds": 4, "times": 20_000}
        for messages, keys, processes in ((1_000, 1, 2), (5_000, 1, 2), (100, 100, 2), (1_000, 1, 16))
    ],
    quick=[{"messages a second": 500, "keys each": 2, "processes": 2, "seconds": 1, "times": 2_000}],
    main=run,
    loops=("uvloop",),
    metrics=(
        Metric("heard_us", "CPU of a change that is not watched", "µs"),
        Metric("woken_us", "CPU of a change that completes an operation", "µs"),
        Metric("a_core", "changes that take a core, not watched", "a second"),
        Metric("server_us", "the server's CPU, a message", "µs"),
        Metric("taken", "messages that the server takes when flooded", "a second"),
    ),
    missing=missing,
)
