"""The core that runs, as far as tests have to know it."""

import pytest

import purgatory.operation
from purgatory import _core

__all__ = ["looks_inside", "set_nesting"]

looks_inside = pytest.mark.skipif(_core.c is not None, reason="looks into structures of the Python core")


def set_nesting(depth: int) -> None:
    """How deep completions go on inside each other."""
    vars(purgatory.operation)["NESTING"] = depth
    _core.provide(nesting=depth)
