"""The command `purgatory`."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

import purgatory._core.errors  # noqa: F401 - first: it tells of another distribution of this name
from purgatory import __core__, __version__
from purgatory._extras import install


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a subcommand."""
    parser = argparse.ArgumentParser("purgatory", description="Operations that wait for a condition or a deadline.")
    parser.add_argument("--version", action="version", version=f"asyncio-purgatory {__version__}, core in {__core__}")
    subcommands = parser.add_subparsers(required=True, metavar="COMMAND")
    missing: dict[str, str] = {}
    for name, extra, package in (
        ("serve", "server", "streams"),
        ("bench", "bench", "bench"),
        ("pipeline", "spark", "spark"),
    ):
        try:
            import_module(f"purgatory.{package}.command").add_to(subcommands)
        except ModuleNotFoundError as error:
            missing[name] = f"needs {error.name}: {install(extra)}"
            subcommands.add_parser(name, help=missing[name])
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] in missing:  # its options are not known
        sys.exit(f"purgatory {given[0]} {missing[given[0]]}")
    options = parser.parse_args(given)
    options.run(options)


if __name__ == "__main__":
    main()
