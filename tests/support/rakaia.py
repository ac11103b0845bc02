"""Scenarios of `purgatory bench --streams` with `rakaia-streams`, another Durable Streams server in Python.

pip install rakaia-streams==0.9.0 && python -m tests.support.rakaia [--rounds N] [--quick]

Prints a table of medians. The servers run alternately, each in a process of its own on uvicorn, with their data on the
same disk. In memory, rakaia stores nothing. On disk, it uses its JSON lines, which its author calls a proof of concept,
with an fsync for each append.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from statistics import median
from typing import Any, Final, TypeAlias

from purgatory.bench import machine
from purgatory.bench.case import OURS, Case, Figures, find
from purgatory.bench.machine import Running
from purgatory.bench.report import number
from purgatory.bench.server import clients, servers

MEMORY: Final = "rakaia in memory"
LINES: Final = "rakaia on disk"
_DATA: Final = "RAKAIA_DATA"

_Parameters: TypeAlias = "dict[str, Any]"

ROWS: Final[tuple[tuple[str, str, _Parameters, tuple[str, ...]], ...]] = (
    ("1 writer", "appends", {"bytes": 100, "writers": 1, "streams": 1, "requests": 1_000}, (OURS, MEMORY, LINES)),
    ("64 writers", "appends", {"bytes": 100, "writers": 64, "streams": 16, "requests": 5_000}, (OURS, MEMORY, LINES)),
    ("1,000 long polls", "readers", {"by": "long poll", "readers": 1_000, "times": 5}, (OURS, MEMORY)),
    ("10,000 long polls", "readers", {"by": "long poll", "readers": 10_000, "times": 3}, (OURS, MEMORY)),
)
QUICK: Final = {"requests": 200, "readers": 100, "times": 2}
"""The most of each in a quick run."""
FIGURES: Final = {
    "appends": {"us": "an append", "cpu_us": "the server's CPU for it"},
    "readers": {"kib": "memory each", "answer_ms": "append to the last answer", "cpu_us": "the server's CPU, each"},
}
UNITS: Final = {"us": "µs", "cpu_us": "µs", "kib": "KiB", "answer_ms": "ms"}


def app() -> Any:
    """Make rakaia's application on disk, for uvicorn."""
    store = import_module("rakaia.jsonl_store").JsonlStreamStore(os.environ[_DATA])
    return import_module("rakaia").create_app(store=store)


@contextmanager
def _running(implementation: str) -> Iterator[Running]:
    """Run a server, as `purgatory.bench.server.servers.running` runs its two."""
    if implementation == OURS:
        with servers.running(OURS) as server:
            yield server
        return
    servers.FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="data-", dir=servers.FOLDER, ignore_cleanup_errors=True) as data:
        target = ["rakaia:app"] if implementation == MEMORY else ["--factory", f"{__spec__.name}:app"]
        command = [sys.executable, "-m", "uvicorn", *target, "--port", "0", "--no-access-log"]
        # Polls wait as long as ours do.
        with machine.running(command, {"LONG_POLL_TIMEOUT": "30", _DATA: data}) as server:
            yield server


def _measured(case: Case) -> Figures:
    """Measure a case in a process of its own."""
    command = [sys.executable, "-m", __spec__.name, "--case", json.dumps(asdict(case))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{case}: {done.stderr}")
    figures: Figures = json.loads(done.stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure purgatory serve and rakaia-streams.")
    parser.add_argument("--rounds", type=int, default=2, help="number of rounds (default: 2)")
    parser.add_argument("--quick", action="store_true", help="measure less, to see whether it works")
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        vars(clients)["running"] = _running
        case = Case(**options.case)
        sys.stdout.write(json.dumps(machine.run(case.loop, find(case.scenario).main(case))))
        sys.stdout.flush()
        os._exit(0)
    rows = []
    for title, scenario, parameters, names in ROWS:
        most = QUICK if options.quick else {}
        less = {name: min(value, most[name]) for name, value in parameters.items() if name in most}
        rows.append((title, [Case(scenario, name, "uvloop", {**parameters, **less}) for name in names]))
    measured: dict[str, list[Figures]] = {}
    for _ in range(options.rounds):
        for case in (case for _, cases in rows for case in cases):
            figures = _measured(case)
            measured.setdefault(str(case), []).append(figures)
            sys.stderr.write(f"{case}: {figures}\n")
    lines = [", ".join(f"{name} {value}" for name, value in machine.describe().items()), ""]
    lines += [f"|  | {OURS} | {MEMORY} | {LINES} |", "| --- | --- | --- | --- |"]
    for title, cases in rows:
        for key, label in FIGURES[cases[0].scenario].items():
            cells = [f"{number(median(each[key] for each in measured[str(case)]))} {UNITS[key]}" for case in cases]
            lines.append("| " + " | ".join([f"{title}: {label}", *cells, *[""] * (3 - len(cells))]) + " |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
