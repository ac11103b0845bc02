"""The core that runs, as far as tests have to know it."""

from importlib.util import find_spec

import pytest

import purgatory.operation
from purgatory import _core

__all__ = ["extension", "in_python", "looks_inside", "set_nesting"]

extension = find_spec("purgatory._core.c")
"""The extension in C; `None` if it has not been built."""

in_python = pytest.mark.skipif(_core.c is not None, reason="is for a run on the core in Python")
looks_inside = pytest.mark.skipif(_core.c is not None, reason="looks into structures of the Python core")


def set_nesting(depth: int) -> None:
    """How deep completions go on inside each other."""
    vars(purgatory.operation)["NESTING"] = depth
    _core.provide(nesting=depth)
