"""The core that runs, as far as tests have to know it."""

from importlib.util import find_spec

import pytest

from purgatory import __core__
from purgatory._core import operation

extension = find_spec("purgatory._speedups.c") if __core__ == "C" else None
"""The extension in C; `None` if it has not been built."""

in_c = pytest.mark.skipif(__core__ != "C", reason="is for a run on the core in C")
in_python = pytest.mark.skipif(__core__ == "C", reason="is for a run on the core in Python")


def set_nesting(depth: int) -> None:
    """How deep completions go on inside each other, in the core in Python."""
    vars(operation)["NESTING"] = depth
