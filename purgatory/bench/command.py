"""`purgatory bench`: measure, and write what was measured."""

import argparse
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from purgatory.bench import machine, plots, report, runner
from purgatory.bench.case import LOOPS, Case, Figures, Measured
from purgatory.bench.scenarios import SCENARIOS
from purgatory.bench.summary import summary

if TYPE_CHECKING:
    Subcommands = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_to"]


def add_to(subcommands: "Subcommands") -> None:
    """Add the subcommand `bench`."""
    parser = subcommands.add_parser(
        "bench",
        help="measure this library beside today's alternatives",
        description="Measure this library beside today's alternatives: in turn, in several rounds, on asyncio and"
        " uvloop. Writes results.json, a table of all figures and ratios (results.md) and plots.",
        epilog="scenarios: " + "; ".join(f"{scenario.name}: {scenario.title}" for scenario in SCENARIOS.values()),
    )
    parser.add_argument("scenarios", nargs="*", type=_scenario, metavar="SCENARIO", help="default: all, see below")
    parser.add_argument("--quick", action="store_true", help="about a minute, to see that it works; else about an hour")
    parser.add_argument("--rounds", type=_count, metavar="N", help="default: 3, or 2 of a quick run")
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), help="only this one")
    parser.add_argument("--output", type=Path, default="purgatory-bench", metavar="DIR", help="default: %(default)s")
    parser.add_argument("--redraw", action="store_true", help="measure nothing: tables and plots of results.json there")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure what the options ask for."""
    if options.redraw:
        _redraw(options.output)
        return
    console = Console(stderr=True)
    names: list[str] = list(dict.fromkeys(options.scenarios)) or list(SCENARIOS)
    missing = {name: why for name in names if (why := SCENARIOS[name].missing())}
    cases: dict[str, list[Case]] = {}
    for name in names:
        if name not in missing:
            some = [case for case in SCENARIOS[name].cases(options.quick) if options.loop in (None, case.loop)]
            if some:
                cases[name] = some
            else:
                missing[name] = f"it has no cases on {options.loop}"
    rounds = options.rounds or (2 if options.quick else 3)
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "results.json").touch()
    except OSError as error:
        sys.exit(f"purgatory bench: cannot write to {options.output}: {error.strerror}")
    about = {
        "machine": machine.describe(),
        "command": shlex.join(["purgatory", *sys.argv[1:]]),
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "rounds": rounds,
    }
    measured: dict[str, list[Measured]] = {}

    def save() -> None:
        report.save(options.output / "results.json", about, measured, missing)

    try:
        _measure(console, cases, rounds, measured, save)
    except runner.CaseFailed as failure:
        sys.exit(f"purgatory bench: {failure}")
    except KeyboardInterrupt:
        sys.exit("purgatory bench: interrupted; what was measured before is in the output")
    finally:
        save()
        _write(options.output, about, measured)
    for name in names:
        if name in missing:
            console.print(f"[yellow]{name} was not measured: {missing[name]}")
        else:
            _show(report.table(SCENARIOS[name], measured[name]))
    console.print(f"written to {options.output}: results.json, results.md and plots")


def _redraw(directory: Path) -> None:
    try:
        about, measured = report.load(directory / "results.json")
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"purgatory bench: cannot read the results in {directory}: {error!r}")
    _write(directory, about, measured)


def _measure(
    console: Console,
    cases: dict[str, list[Case]],
    rounds: int,
    measured: dict[str, list[Measured]],
    save: Callable[[], object],
) -> None:
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("starting", total=rounds * sum(map(len, cases.values())))

        def measure(case: Case) -> Figures:
            progress.update(bar, description=str(case))
            return runner.measure_apart(case)

        for name, some in cases.items():
            if not console.is_terminal:  # there is no bar to see
                console.print(f"{SCENARIOS[name].title}: {len(some)} cases, {rounds} rounds")
            for measured[name] in runner.run(some, rounds, measure):
                progress.advance(bar)
            save()  # a run is long, and what is measured is measured


def _write(directory: Path, about: dict[str, Any], measured: dict[str, list[Measured]]) -> None:
    tables = [report.markdown(summary(measured, loop)) for loop in LOOPS]
    tables += [report.markdown(report.table(SCENARIOS[name], cases)) for name, cases in measured.items()]
    described = ", ".join(f"{name} {value}" for name, value in about["machine"].items())
    (directory / "results.md").write_text("\n\n".join([f"`{about['command']}` on {described}.", *tables]) + "\n")
    for name, cases in measured.items():
        plots.draw(SCENARIOS[name], cases, directory)
    for loop in LOOPS:
        plots.draw_overview(measured, loop, directory)


def _show(table: report.Table) -> None:
    shown = Table(title=table.title)
    for number, column in enumerate(table.columns):
        shown.add_column(column, justify="left" if number < 2 else "right")
    for row in table.rows:
        shown.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 140).print(shown)


def _scenario(text: str) -> str:
    if text not in SCENARIOS:
        raise argparse.ArgumentTypeError(f"there is no scenario {text!r}, but: {', '.join(SCENARIOS)}")
    return text


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return count
