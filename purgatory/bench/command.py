"""`purgatory bench`: measure, and write the results."""

import argparse
import shlex
import sys
import textwrap
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from purgatory.bench import machine, report, runner
from purgatory.bench.case import BEFORE, EVERY, GROUPS, IN_PYTHON, LIBRARY, LOOPS, SERVER, Case, Figures, Measured, find
from purgatory.bench.summary import draw, lines, summary

if TYPE_CHECKING:
    Subcommands = argparse._SubParsersAction[argparse.ArgumentParser]

LEGEND = (
    "Figures are medians of all rounds. Ratios are of two figures of the same round: above 1, ours takes less. "
    "*call_later* is a set of requests for each key with the loop's own timer; *Event + timeout*, a task with an "
    "`asyncio.Event` under `asyncio.timeout` for each waiter, the task included, but in the await path and over HTTP, "
    "where it is there anyway; *future (floor)*, a bare future without a timeout; *in Python*, this library with its "
    "core in Python, whose ratios are to the same implementation on the core in C; *reference server*, that of the "
    "Durable Streams protocol, on Node with its file-backed store; *before*, the library of another checkout, whose "
    "ratios are to the same implementation of this."
)

_WIDTH = 78
"""Columns of a line of the help that argparse does not wrap."""


def add_to(subcommands: "Subcommands") -> None:
    """Add the subcommand `bench`."""
    parser = subcommands.add_parser(
        "bench",
        help="measure this library and its alternatives",
        description=textwrap.fill(
            "Measure this library and its alternatives alternately, in several rounds, on asyncio and uvloop. Write"
            " results.json, a table of all figures and ratios (results.md) and a picture.",
            _WIDTH,
        ),
        epilog=_scenarios(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    group = parser.add_argument_group("what to measure")
    group.add_argument(
        "scenarios",
        nargs="*",
        type=_scenario,
        metavar="SCENARIO",
        help="scenarios of the list below (default: all of library and HTTP)",
    )
    group.add_argument(
        "--streams",
        action="store_true",
        help="measure `purgatory serve` and the reference Durable Streams server, which npm installs first",
    )
    group.add_argument("--loop", choices=LOOPS, help="measure on this event loop only (default: both)")
    compared = group.add_mutually_exclusive_group()
    compared.add_argument("--cores", action="store_true", help="measure this library with the core in Python too")
    compared.add_argument(
        "--baseline",
        type=_checkout,
        metavar="DIR",
        help="compare with the library of another checkout only, in every round. Ratios above 1 mean that this library"
        " takes less. Cases that the other library cannot run are left out",
    )
    group = parser.add_argument_group("how to measure")
    group.add_argument(
        "--quick", action="store_true", help="check everything in about two minutes (a full run takes about an hour)"
    )
    group.add_argument("--rounds", type=rounds, metavar="N", help="number of rounds (default: 3, or 2 with --quick)")
    group.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder of the results (default: purgatory-bench/full, or quick, or baseline; with --streams streams-full"
        " and so on)",
    )
    parser.set_defaults(run=run)


def _scenarios() -> str:
    """The list of scenarios: a line for each, in groups."""
    lines = []
    for group, names in GROUPS.items():
        lines += ["", f"{group} scenarios{' (--streams)' if group == 'server' else ''}:"]
        for name in names:
            lines += textwrap.wrap(f"  {name:<9} {find(name).title}", _WIDTH, subsequent_indent=" " * 12)
    return "\n".join(lines[1:])


def run(options: argparse.Namespace) -> None:
    """Measure the scenarios that the options name."""
    baseline: Path | None = options.baseline
    kind = "baseline" if baseline else "quick" if options.quick else "full"
    output: Path = options.output or Path("purgatory-bench", f"streams-{kind}" if options.streams else kind)
    names = options.scenarios or (SERVER if options.streams else LIBRARY)
    cases, missing = _cases(dict.fromkeys(names), options)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        sys.exit(f"purgatory bench: cannot write to {output}: {error.strerror}")
    times: int = options.rounds or (2 if options.quick else 3)
    about: dict[str, Any] = {
        "machine": machine.describe(),
        "command": shlex.join(["purgatory", *sys.argv[1:]]),
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "rounds": times,
    }
    if baseline:
        about["baseline"] = str(baseline)
    console = Console(stderr=True)
    measured: dict[str, list[Measured]] = {}
    try:
        _measure(console, cases, times, measured, baseline)
    except runner.CaseFailed as failure:
        sys.exit(f"purgatory bench: {failure}")
    except KeyboardInterrupt:
        console.print("purgatory bench: interrupted: the finished scenarios are written")
        sys.exit(130)
    finally:
        _write(output, about, measured, missing)
    tables = Console(width=None if sys.stdout.isatty() else 140)
    for name, finished in measured.items():
        tables.print(Markdown(report.table(find(name), finished)))
        for each in finished:
            if each.failed is not None:
                why = each.failed.splitlines()[-1]
                console.print(f"left out: {each.case}: {why}", style="yellow", markup=False, highlight=False)
    for what, why in missing.items():
        console.print(f"{what} was not measured: {why}", style="yellow", markup=False, highlight=False)
    console.print(f"written to {output}: results.json, results.md and a picture")


def _cases(names: Iterable[str], options: argparse.Namespace) -> tuple[dict[str, list[Case]], dict[str, str]]:
    """The cases of each scenario, and what cannot be measured here, and why."""
    found: dict[str, list[Case]] = {}
    missing: dict[str, str] = {}
    for name in names:
        scenario = find(name)
        some = []
        for case in scenario.cases(options.quick):
            if why := scenario.missing(case):
                missing[str(case)] = why
            elif options.loop in (None, case.loop):
                some.append(case)
        if not some:
            missing[name] = f"it has no cases on {options.loop}"
        elif options.baseline:
            found[name] = list(runner.with_variants(filter(Case.is_ours, some), BEFORE))
        else:
            found[name] = list(runner.with_variants(some, IN_PYTHON)) if options.cores else some
    return found, missing


def _measure(
    console: Console,
    cases: dict[str, list[Case]],
    rounds: int,
    measured: dict[str, list[Measured]],
    baseline: Path | None,
) -> None:
    description = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), description)
    with Progress(*columns, console=console, expand=True) as progress:
        bar = progress.add_task("starting", total=rounds * sum(map(len, cases.values())))

        def measure(case: Case) -> Figures:
            progress.update(bar, description=str(case))
            return runner.measure_apart(case, baseline)

        for name, some in cases.items():
            if not console.is_terminal:  # there is no bar to see
                console.print(f"{find(name).title}: {len(some)} cases, {rounds} rounds")
            measured[name] = runner.run(some, rounds, measure, lambda: progress.advance(bar))


def _write(
    directory: Path, about: dict[str, Any], measured: dict[str, list[Measured]], missing: dict[str, str]
) -> None:
    report.save(directory / "results.json", about, measured, missing)
    tables = [table for loop in LOOPS if (table := summary(measured, loop))]
    tables += [report.table(find(name), cases) for name, cases in measured.items()]
    described = ", ".join(f"{name} {value}" for name, value in about["machine"].items())
    head = f"`{about['command']}`, {about['began']}, {about['rounds']} rounds, on {described}. {LEGEND}"
    (directory / "results.md").write_text("\n\n".join([head, *tables]) + "\n")
    for loop in LOOPS:
        draw(lines(measured, loop), loop, directory / f"overview-{loop}.png")


def _scenario(text: str) -> str:
    if text not in EVERY:
        raise argparse.ArgumentTypeError(f"there is no scenario {text!r}: choose from {', '.join(EVERY)}")
    return text


def _checkout(text: str) -> Path:
    path = Path(text).resolve()
    if not (path / "purgatory" / "__init__.py").is_file():
        raise argparse.ArgumentTypeError(f"must be a checkout of this library, with a folder purgatory, not {text}")
    return path


def rounds(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return number
