"""The command `purgatory`."""

import argparse
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a subcommand."""
    try:
        from purgatory.bench import command as bench
    except ModuleNotFoundError as error:
        sys.exit(f"purgatory bench needs {error.name}: pip install 'asyncio-purgatory[bench]'")
    parser = argparse.ArgumentParser("purgatory", description="Operations that wait for a condition or a deadline.")
    subcommands = parser.add_subparsers(required=True, metavar="COMMAND")
    bench.add_to(subcommands)
    options = parser.parse_args(arguments)
    options.run(options)


if __name__ == "__main__":
    main()
