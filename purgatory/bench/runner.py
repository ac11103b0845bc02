"""The runs of cases: each in a process of its own, alternately, in several rounds."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

from purgatory.bench.case import BEFORE, IN_PYTHON, Case, Figures, Measured

SOURCE = Path(__file__).parents[2]
"""The folder of this library."""

SECONDS = 900.0
"""The time limit of a case: a longer one hangs."""


class CaseFailed(Exception):
    """A case could not be measured."""


def with_variants(cases: Iterable[Case], suffix: str) -> Iterator[Case]:
    """The cases, each of this library followed by the same one whose implementation has that suffix."""
    for case in cases:
        yield case
        if case.is_ours():
            yield replace(case, implementation=case.implementation + suffix)


def measure_apart(case: Case, baseline: Path | None = None) -> Figures:
    """Measure `case` in a new process. Raises `CaseFailed`.

    If the implementation's name ends with `BEFORE`, the library is that of the checkout `baseline`. The scenario is
    always that of this checkout. If it ends with `IN_PYTHON`, the core is the one in Python.
    """
    name = case.implementation
    described = replace(case, implementation=name.removesuffix(BEFORE).removesuffix(IN_PYTHON))
    source = baseline if baseline is not None and name.endswith(BEFORE) else SOURCE
    core = {"PURGATORY_PURE": "1"} if name.endswith(IN_PYTHON) else {}
    command = [sys.executable, "-P", str(Path(__file__).with_name("worker.py")), json.dumps(asdict(described))]
    path = [str(source), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, **core, "PYTHONPATH": os.pathsep.join(path)}
    directory = None if source is SOURCE else source  # a scenario's own `python -m` looks there first
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=SECONDS, env=environment, cwd=directory
        )
    except subprocess.TimeoutExpired:
        raise CaseFailed(f"{case} took more than {SECONDS:.0f} seconds") from None
    if done.returncode:
        raise CaseFailed(f"{case} failed:\n{done.stderr.strip() or f'exit code {done.returncode}'}")
    figures: Figures = json.loads(done.stdout)
    return figures


def run(
    cases: Iterable[Case], rounds: int, measure: Callable[[Case], Figures], advance: Callable[[], object] = lambda: None
) -> list[Measured]:
    """Measure all `cases` alternately, `rounds` times, and call `advance` after each. Raises `CaseFailed`.

    A case that the library of another checkout cannot run is left out from then on.
    """
    measured = [Measured(case) for case in cases]
    for _ in range(rounds):
        for each in measured:
            if each.failed is None:
                try:
                    each.rounds.append(measure(each.case))
                except CaseFailed as failure:
                    if not each.case.implementation.endswith(BEFORE):
                        raise
                    each.rounds.clear()
                    each.failed = str(failure)
            advance()
    return measured
