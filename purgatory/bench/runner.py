"""Runs cases, each in a process of its own, in turn, several rounds."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict

from purgatory.bench import machine
from purgatory.bench.case import Case, Figures, Measured

__all__ = ["CaseFailed", "measure_apart", "run"]

SECONDS = 900.0
"""A case that takes longer hangs."""


class CaseFailed(Exception):
    """A case could not be measured."""


def measure_apart(case: Case) -> Figures:
    """Measure `case` in a new process. Raises `CaseFailed`."""
    command = [sys.executable, "-m", "purgatory.bench.worker", json.dumps(asdict(case))]
    path = [str(machine.SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        raise CaseFailed(f"{case} took more than {SECONDS:.0f} seconds") from None
    if done.returncode:
        raise CaseFailed(f"{case} failed:\n{done.stderr.strip() or f'exit code {done.returncode}'}")
    figures: Figures = json.loads(done.stdout)
    return figures


def run(
    cases: Iterable[Case], rounds: int, measure: Callable[[Case], Figures] = measure_apart
) -> Iterator[list[Measured]]:
    """Measure all `cases` in turn, `rounds` times. After each run, yield what has been measured so far."""
    measured = [Measured(case) for case in cases]
    for _ in range(rounds):
        for each in measured:
            each.rounds.append(measure(each.case))
            yield measured
