"""The tests' own assertions are executed under `python -O` too, where the package's are not."""

import pytest

from tests.support import invariants, naive, operations


def test_assertions_of_test_modules_are_executed() -> None:
    with pytest.raises(AssertionError):
        assert operations is naive


def test_assertions_of_helpers_are_executed() -> None:
    for helper in (invariants, naive, operations):
        assert helper.__spec__ is not None
        assert type(helper.__spec__.loader).__name__ == "AssertionRewritingHook"
