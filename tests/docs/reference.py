"""Build the API reference from the docstrings: `python -m tests.docs.reference [FOLDER]`, `reference/` unless given.

pdoc's warnings are errors: a name in a docstring that leads nowhere, an attribute that cannot be read.
"""

import os
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Final

import pdoc

MODULES: Final = (
    "purgatory",
    "purgatory.asgi",
    "purgatory.journal",
    "purgatory.lowlevel",
    "purgatory.metrics",
    "purgatory.relay",
    "purgatory.spark.session",
    "purgatory.spark.source",
    "purgatory.streams",
    "purgatory.uvicorn",
)
"""The modules whose names are public."""


def main() -> None:
    """Build it."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "reference")
    os.environ["PURGATORY_PURE"] = "1"  # methods in C have no annotations
    for module in map(import_module, MODULES):
        for name in module.__all__:
            setattr(module, name, getattr(module, name))  # pdoc does not look for names that are imported when used
    warnings.simplefilter("error")
    pdoc.pdoc(*MODULES, output_directory=folder)


if __name__ == "__main__":
    main()
