"""The driver of all attacks: a fresh server, a probe that measures it, and an outcome beside the targets."""

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

import aiohttp

from tests.streams.attacks import probe
from tests.streams.attacks.attackers import Attackers

MEMORY: Final = 300 * 1024 * 1024
BARE: Final = 60 * 1024 * 1024
"""The memory of a server before any attack, where nothing but the extra `server` is installed.

The command imports what other extras have brought, 130 MiB with Spark's, so its growth is what the target is about.
"""
LONGEST: Final = 1.0
"""Seconds until an answer to the probe."""
P99: Final = 0.5
"""Seconds until 99 % of the probe's appends are answered."""
STARTING: Final = 60.0


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack, and what its server needs."""

    run: Callable[[Attackers], Awaitable[None]]
    files: int | None = None
    """The server's limit of open files. Where it has one, the probe has to wait."""
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of an attack. Times are in seconds, sizes in bytes."""

    name: str
    seconds: float
    begin: int
    """The server's memory before the attack."""
    memory: int
    longest: float
    p99: float
    refusals: dict[str, int]
    """What the probe got in place of an answer, by status: "none" is a connection without one."""
    statuses: dict[str, int]
    """What the attackers got: "waiting" is a request without an answer so far."""
    without_retry_after: int
    """How many of those were 429 or 503, and did not say when to come again."""
    tracebacks: int
    """In the log of the server."""
    notes: list[str]
    failures: list[str]
    """Those of the notes that should be others."""
    timed: bool
    """Whether the targets of time and refusals apply."""

    @property
    def grown(self) -> int:
        return self.memory - self.begin

    @property
    def missed(self) -> list[str]:
        found = {
            "memory": self.grown >= MEMORY - BARE,
            "probe": self.timed and self.longest >= LONGEST,
            "appends": self.timed and self.p99 >= P99,
            "refused": self.timed and bool(self.refusals),
            "Retry-After": self.without_retry_after > 0,
            "log": self.tracebacks > 0,
        }
        return [*(name for name, missed in found.items() if missed), *self.failures]


class Server:
    """The server that is attacked, in a folder of its own, and the probe that measures it."""

    def __init__(self, stack: ExitStack, command: list[str]) -> None:
        self._stack = stack
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attacked-")))
        self._log = folder / "log"
        with self._log.open("w") as file:
            # In that folder: in this one, `-m purgatory` is the package that is here, whatever the interpreter.
            options = ["--port", "0", "--data", str(folder / "data")]
            self.process = self._start([*command, *options], cwd=folder, stdout=file, stderr=file)
        self.port = self._started()
        probing = [sys.executable, probe.__file__, str(self.port), str(self.process.pid)]
        self._probe = self._start(probing, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._probe.stdout is not None
        assert self._probe.stdout.readline() == "ready\n"

    def _start(self, command: list[str], **options: Any) -> "subprocess.Popen[Any]":
        process = subprocess.Popen(command, **options)
        self._stack.callback(process.communicate)
        self._stack.callback(process.kill)  # how a server ends is the subject of other tests
        return process

    def _started(self) -> int:
        end = time.monotonic() + STARTING
        while time.monotonic() < end and self.process.poll() is None:
            if found := re.search(r"running on http://127\.0\.0\.1:(\d+)", self.log):
                return int(found[1])
            time.sleep(0.02)
        raise RuntimeError(f"the server did not start: {self.log}")

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def measured(self) -> dict[str, Any]:
        """Stop the probe. Returns what it has measured."""
        result: dict[str, Any] = json.loads(self._probe.communicate()[0])
        return result


@contextmanager
def attacked(python: str, options: Sequence[str], files: int | None = None) -> Iterator[Server]:
    """A `purgatory serve` with its defaults, but for the options given, with at most so many open files."""
    command = [python, "-m", "purgatory", "serve", *options]
    if files is not None:
        command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
    with ExitStack() as stack:
        yield Server(stack, command)


def run(name: str, attack: Attack, python: str, short: bool = False, options: Sequence[str] = ()) -> Outcome:
    """Run an attack on a fresh server with these options."""
    begin = time.monotonic()
    with attacked(python, [*options, *attack.options], attack.files) as server:
        attackers = asyncio.run(_run(attack, server, short))
        if server.process.poll() is not None:
            attackers.check(f"the server ended with {server.process.returncode}", ok=False)
        measured = server.measured()
        appends = [seconds for seconds, _ in measured["appends"]]
        answers = [*measured["reads"], *measured["appends"]]
        refusals = Counter(str(status or "none") for _, status in answers if status not in (200, 204))
        return Outcome(
            name,
            time.monotonic() - begin,
            measured["begin"],
            measured["memory"],
            longest=max(seconds for seconds, _ in answers),
            p99=quantiles(appends, n=100, method="inclusive")[98] if len(appends) > 1 else max(appends),
            refusals=dict(sorted(refusals.items())),
            statuses=dict(sorted(attackers.statuses.items())),
            without_retry_after=attackers.without_retry_after,
            tracebacks=server.log.count("Traceback"),
            notes=attackers.notes,
            failures=attackers.failures,
            timed=attack.files is None,
        )


async def _run(attack: Attack, server: Server, short: bool) -> Attackers:
    connector = aiohttp.TCPConnector(local_addr=("127.0.0.1", 0), limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as session:
        attackers = Attackers(server.port, lambda: server.log, session, short)
        try:
            async with asyncio.timeout(attackers.limit):
                await attack.run(attackers)
        except TimeoutError:
            attackers.notes.append(f"broken off after {attackers.limit:g} s")
        return attackers
