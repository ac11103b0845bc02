"""Attack `purgatory serve`, and print what others still get: python -m tests.streams.attacks"""

import argparse
import resource
import sys

from tests.streams.attacks.attackers import MIB
from tests.streams.attacks.driver import BARE, LONGEST, MEMORY, P99, Outcome, run
from tests.streams.attacks.every import EVERY


def _names(text: str) -> list[str]:
    found = [name for name in EVERY if name == text or name.startswith(f"{text}-")]
    if not found:
        raise argparse.ArgumentTypeError(f"there is no attack {text!r}, but: {', '.join(EVERY)}")
    return found


def _lines(outcome: Outcome) -> list[str]:
    refusals, statuses = (
        ", ".join(f"{status}: {count:,}" for status, count in counts.items()) or "nothing"
        for counts in (outcome.refusals, outcome.statuses)
    )
    return [
        f"memory {outcome.memory // MIB:,} MiB, grown by {outcome.grown // MIB:,} MiB",
        f"longest answer {outcome.longest:.2f} s, appends {outcome.p99:.3f} s, refused {refusals}",
        f"the attackers got {statuses}",
        *outcome.notes,
    ]


def main() -> None:
    """Parse the arguments, run the attacks, print their outcomes. Exits with 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.streams.attacks", description=__doc__)
    add = parser.add_argument
    add("--only", type=_names, nargs="+", metavar="NAME", help="attacks to run; the name of a group runs all of it")
    add("--short", action="store_true", help="run each attack for at most five seconds")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sys.stdout.write(
        f"Targets: memory grown by < {(MEMORY - BARE) // MIB} MiB, another client's longest answer < {LONGEST:g} s, "
        f"99 % of its appends < {P99:g} s, never refused\n"
    )
    failed = False
    for name in [name for names in options.only for name in names] if options.only else EVERY:
        outcome = run(name, options.short)
        missed = [*outcome.failures, *outcome.late]
        failed = failed or bool(missed)
        held = f"missed {', '.join(missed)}" if missed else "held"
        sys.stdout.write("\n    ".join([f"{name}: {held}", *_lines(outcome)]) + "\n")
        sys.stdout.flush()
    sys.exit(failed)


if __name__ == "__main__":
    main()
