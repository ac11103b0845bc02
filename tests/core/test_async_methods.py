"""An `async` method would never be awaited: it is refused in a class and in its mixins."""

import pytest

from purgatory import DelayedOperation
from tests.support.operations import Flag

METHODS = ["try_complete", "on_complete", "on_expiration", "on_undelivered"]


async def method(self: object, *args: object) -> None:
    """This method is never awaited."""


@pytest.mark.parametrize("name", METHODS)
def test_an_async_method_of_the_class_itself_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        type("Odd", (Flag,), {name: method})


@pytest.mark.parametrize("name", METHODS)
def test_an_async_method_of_a_mixin_is_refused(name: str) -> None:
    mixin = type("Mixin", (), {name: method})
    with pytest.raises(TypeError, match=name):
        type("Odd", (mixin, Flag), {})


@pytest.mark.parametrize("name", ["try_complete", "on_complete"])
def test_an_async_method_of_a_mixin_for_an_abstract_one_is_refused(name: str) -> None:
    mixin = type("Mixin", (), {name: method})
    with pytest.raises(TypeError, match=name):
        type("Odd", (mixin, DelayedOperation), {})


def test_an_async_method_hidden_by_a_plain_one_is_accepted() -> None:
    mixin = type("Mixin", (), {"on_complete": method})
    fine = type("Fine", (Flag, mixin), {})
    assert fine().name == "flag"
