"""The core that runs, as far as tests have to know it."""

from importlib.util import find_spec

import pytest

import purgatory._core.operation
from purgatory import _speedups

__all__ = ["extension", "in_python", "looks_inside", "set_nesting"]

extension = find_spec("purgatory._speedups.c")
"""The extension in C; `None` if it has not been built."""

in_python = pytest.mark.skipif(_speedups.c is not None, reason="is for a run on the core in Python")
looks_inside = pytest.mark.skipif(_speedups.c is not None, reason="looks into structures of the Python core")


def set_nesting(depth: int) -> None:
    """How deep completions go on inside each other."""
    vars(purgatory._core.operation)["NESTING"] = depth
    _speedups.provide(nesting=depth)
