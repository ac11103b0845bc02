"""The command `purgatory`."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

import purgatory._loop.errors  # noqa: F401 - first: it tells of another distribution of this name
from purgatory import __core__, __version__
from purgatory._extras import install

_COMMANDS: Final = {"serve": ("server", "streams"), "bench": ("bench", "bench"), "pipeline": ("spark", "pipeline")}
"""The commands, each with its extra and its package."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a subcommand."""
    description = "Run a server, a benchmark or the analysis of journals. Each COMMAND has its own --help."
    parser = argparse.ArgumentParser("purgatory", description=description)
    parser.add_argument("--version", action="version", version=f"asyncio-purgatory {__version__}, core in {__core__}")
    subcommands = parser.add_subparsers(required=True, metavar="COMMAND")
    given = sys.argv[1:] if arguments is None else arguments
    # What is not called is not imported: a server has no use for Spark, which takes 130 MiB.
    called = {given[0]: _COMMANDS[given[0]]} if given and given[0] in _COMMANDS else _COMMANDS
    missing: dict[str, str] = {}
    for name, (extra, package) in called.items():
        try:
            import_module(f"purgatory.{package}.command").add_to(subcommands)
        except ModuleNotFoundError as error:
            missing[name] = f"needs {error.name}: {install(extra)}"
        except ImportError as error:  # for example a uvicorn that is not known
            missing[name] = f"can't run: {error}"
    for name, fault in missing.items():
        subcommands.add_parser(name, help=fault)
    if given and given[0] in missing:  # its options are not known
        sys.exit(f"purgatory {given[0]} {missing[given[0]]}")
    options = parser.parse_args(given)
    options.run(options)


if __name__ == "__main__":
    main()
