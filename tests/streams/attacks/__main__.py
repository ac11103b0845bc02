"""Attack `purgatory serve`, and print what others still get: python -m tests.streams.attacks"""

import argparse
import json
import resource
import shlex
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from tests.streams.attacks.every import EVERY, run
from tests.streams.attacks.outcome import checks, summary


def _names(text: str) -> list[str]:
    found = [name for name in EVERY if name == text or name.startswith(f"{text}-")]
    if not found:
        raise argparse.ArgumentTypeError(f"there is no attack {text!r}, but: {', '.join(EVERY)}")
    return found


def main() -> None:
    """Parse the arguments, run the attacks, print the tables. Exits with 1 if a target is missed."""
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
    outcomes = []
    for name in [name for names in options.only for name in names] if options.only else EVERY:
        progress.print(f"{name} …", end=" ")
        outcomes.append(outcome := run(name, options.python, options.short, options.args))
        missed = f"missed: {', '.join(outcome.missed)}" if outcome.missed else "held"
        progress.print(f"{outcome.seconds:.1f} s, {missed}")
        if options.json is not None:
            options.json.write_text(json.dumps([asdict(each) | {"missed": each.missed} for each in outcomes], indent=2))
    console = Console(width=None if sys.stdout.isatty() else 180)
    console.print(summary(outcomes))
    if any(outcome.checks for outcome in outcomes):
        console.print(checks(outcomes))
    sys.exit(any(outcome.missed for outcome in outcomes))


if __name__ == "__main__":
    main()
