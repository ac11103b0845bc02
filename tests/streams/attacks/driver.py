"""The driver of all attacks: a fresh server, a probe that measures it, and an outcome beside the targets."""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

import aiohttp

from tests.streams.attacks import probe
from tests.streams.attacks.attackers import MIB, Attackers
from tests.streams.attacks.every import EVERY, Attack
from tests.streams.processes import ServerProcess, running

MEMORY: Final = 300 * MIB
BARE: Final = 60 * MIB
"""The memory of a server before any attack, where nothing but the extra `server` is installed.

The command imports what other extras have brought, 130 MiB with Spark's, so its growth is what the target is about.
"""
LONGEST: Final = 1.0
"""Seconds until an answer to the probe."""
P99: Final = 0.5
"""Seconds until 99 % of the probe's appends are answered."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of an attack. Times are in seconds, sizes in bytes."""

    memory: int
    grown: int
    longest: float
    p99: float
    refusals: dict[str, int]
    """What the probe got in place of an answer, by status: "none" is a connection without one."""
    statuses: dict[str, int]
    """What the attackers got: "waiting" is a request without an answer so far."""
    notes: list[str]
    failures: list[str]
    """What must not be, however long the attack."""
    late: list[str]
    """The targets of time and refusals that were missed."""


@contextmanager
def _measuring(server: ServerProcess) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, probe.__file__, str(server.port), str(server.process.pid)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def run(name: str, short: bool = False) -> Outcome:
    """Run an attack on a fresh server, with its defaults but for the attack's options."""
    attack = EVERY[name]
    with (
        tempfile.TemporaryDirectory(prefix="attacked-") as folder,
        running(Path(folder), *attack.options, files=attack.files) as server,
        _measuring(server) as measuring,
    ):
        attackers = asyncio.run(_attack(attack, server.port, short))
        measured: dict[str, Any] = json.loads(measuring.communicate()[0])
        assert server.process.poll() is None, "the server has ended"
    appends = [seconds for seconds, _ in measured["appends"]]
    answers = [*measured["reads"], *measured["appends"]]
    longest = max(seconds for seconds, _ in answers)
    p99 = quantiles(appends, n=100, method="inclusive")[98] if len(appends) > 1 else max(appends)
    refusals = Counter(str(status or "none") for _, status in answers if status not in (200, 204))
    grown = measured["memory"] - measured["begin"]
    lines = "".join(server.output).count("out of descriptors")
    failures = {
        "memory": grown >= MEMORY - BARE,
        "Retry-After": attackers.without_retry_after > 0,
        f"{lines} lines of the log": not 1 <= lines <= 20 if attack.files else lines > 0,
    }
    late = {"probe": longest >= LONGEST, "appends": p99 >= P99, "refused": bool(refusals)}
    return Outcome(
        measured["memory"],
        grown,
        longest,
        p99,
        dict(sorted(refusals.items())),
        dict(sorted(attackers.statuses.items())),
        attackers.notes,
        [*(name for name, failed in failures.items() if failed), *attackers.failures],
        [name for name, missed in late.items() if missed and attack.files is None],
    )


async def _attack(attack: Attack, port: int, short: bool) -> Attackers:
    connector = aiohttp.TCPConnector(local_addr=("127.0.0.1", 0), limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as session:
        attackers = Attackers(port, session, short)
        try:
            async with asyncio.timeout(attackers.limit):
                await attack.run(attackers)
        except TimeoutError:
            attackers.notes.append(f"broken off after {attackers.limit:g} s")
        return attackers
