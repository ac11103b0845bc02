"""The command `purgatory`."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subcommands = argparse._SubParsersAction[argparse.ArgumentParser]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a subcommand."""
    parser = argparse.ArgumentParser("purgatory", description="Operations that wait for a condition or a deadline.")
    subcommands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, extra in (("bench", "bench"), ("pipeline", "spark")):
        try:
            import_module(f"purgatory.{extra}.command").add_to(subcommands)
        except ModuleNotFoundError as error:
            _tell_what_is_missing(subcommands, name, f"needs {error.name}: pip install 'asyncio-purgatory[{extra}]'")
    options = parser.parse_args(arguments)
    options.run(options)


def _tell_what_is_missing(subcommands: "Subcommands", name: str, missing: str) -> None:
    parser = subcommands.add_parser(name, help=missing, description=missing)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    parser.set_defaults(run=lambda options: sys.exit(f"purgatory {name} {missing}"))


if __name__ == "__main__":
    main()
