"""Attack `purgatory serve`, and print what others still get: python -m tests.streams.attacks"""

import argparse
import json
import resource
import shlex
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.streams.attacks.driver import BARE, LONGEST, MEMORY, P99, Outcome, run
from tests.streams.attacks.every import EVERY

TARGETS = (
    f"Targets: memory grown by < {(MEMORY - BARE) >> 20} MiB, probe's longest answer < {LONGEST:g} s, "
    f"99 % of its appends < {P99:g} s, never refused"
)
COLUMNS = ("attack", "memory", "grown by", "longest", "appends", "probe refused", "attackers got", "missed")


def _names(text: str) -> list[str]:
    found = [name for name in EVERY if name == text or name.startswith(f"{text}-")]
    if not found:
        raise argparse.ArgumentTypeError(f"there is no attack {text!r}, but: {', '.join(EVERY)}")
    return found


def _cells(outcome: Outcome) -> list[str]:
    """The line of an attack. Times for which there is no target are in brackets."""
    form = "{}" if outcome.timed else "({})"
    refusals, statuses = (
        ", ".join(f"{status}: {count:,}" for status, count in counts.items())
        for counts in (outcome.refusals, outcome.statuses)
    )
    times = form.format(f"{outcome.longest:.2f} s"), form.format(f"{outcome.p99:.3f} s")
    sizes = f"{outcome.memory >> 20:,} MiB", f"{outcome.grown >> 20:,} MiB"
    got = "\n".join([statuses, *outcome.notes])
    return [outcome.name, *sizes, *times, refusals, got, ", ".join(outcome.missed)]


def main() -> None:
    """Parse the arguments, run the attacks, print the table. Exits with 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.streams.attacks", description=__doc__)
    add = parser.add_argument
    add("--python", default=sys.executable, metavar="PATH", help="interpreter of the server (default: this)")
    add("--only", type=_names, nargs="+", metavar="NAME", help="attacks to run; the name of a group runs all of it")
    add("--short", action="store_true", help="run each attack for at most five seconds")
    add("--json", type=Path, metavar="FILE", help="file for the figures")
    add("--args", type=shlex.split, default=[], help="options for the server: --args='--max-body 4096'")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    progress = Console(stderr=True)
    table = Table(*COLUMNS, title=TARGETS)
    outcomes = []
    for name in [name for names in options.only for name in names] if options.only else EVERY:
        progress.print(f"{name} …", end=" ")
        outcome = run(name, EVERY[name], options.python, options.short, options.args)
        outcomes.append(asdict(outcome) | {"missed": outcome.missed})
        table.add_row(*_cells(outcome), style="red" if outcome.missed else None)
        missed = f"missed: {', '.join(outcome.missed)}" if outcome.missed else "held"
        progress.print(f"{outcome.seconds:.1f} s, {missed}")
        if options.json is not None:
            options.json.write_text(json.dumps(outcomes, indent=2))
    Console(width=None if sys.stdout.isatty() else 180).print(table)
    sys.exit(any(each["missed"] for each in outcomes))


if __name__ == "__main__":
    main()
