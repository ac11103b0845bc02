"""A method that is `async` would not be awaited: it is noticed wherever it comes from."""

import pytest

from purgatory import DelayedOperation
from tests.support.operations import Flag

METHODS = ["try_complete", "on_complete", "on_expiration", "on_undelivered"]


async def method(self: object, *args: object) -> None:
    """Would do nothing."""


@pytest.mark.parametrize("name", METHODS)
def test_in_the_class_itself(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        type("Odd", (Flag,), {name: method})


@pytest.mark.parametrize("name", METHODS)
def test_in_a_mixin_before_it(name: str) -> None:
    mixin = type("Mixin", (), {name: method})
    with pytest.raises(TypeError, match=name):
        type("Odd", (mixin, Flag), {})


@pytest.mark.parametrize("name", ["try_complete", "on_complete"])
def test_in_a_mixin_for_an_abstract_method(name: str) -> None:
    mixin = type("Mixin", (), {name: method})
    with pytest.raises(TypeError, match=name):
        type("Odd", (mixin, DelayedOperation), {})


def test_a_mixin_that_is_hidden_by_a_plain_method_is_none_of_ours() -> None:
    mixin = type("Mixin", (), {"on_complete": method})
    fine = type("Fine", (Flag, mixin), {})
    assert fine().name == "flag"
