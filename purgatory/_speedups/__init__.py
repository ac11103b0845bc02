"""The choice of the core: the classes in C where the extension could be built, else those in Python.

As with CPython's `heapq` or `asyncio`, the Python is the reference and complete. The extension has types that take the
place of the same classes and of the methods that are called often. `PURGATORY_PURE=1` in the environment chooses the
Python at import.
"""

import os
from collections.abc import Callable
from types import MemberDescriptorType, ModuleType
from typing import Any, Final, TypeVar

__all__ = ["__core__", "c", "compiled", "provide", "python_of"]

C = TypeVar("C", bound=type)

_OF_A_CLASS_ALONE: Final = ("__abstractmethods__", "__dict__", "__slots__", "__weakref__", "_abc_impl")

_python: dict[type, type] = {}
"""The classes in Python, by those that have taken their place."""


def _load() -> ModuleType | None:
    if os.environ.get("PURGATORY_PURE", "") not in ("", "0"):
        return None
    try:
        from purgatory._speedups import c
    except ImportError:  # it could not be built
        return None
    return c


c: Final = _load()

__core__: Final = "Python" if c is None else "C"
"""The language of the core that is used."""


def compiled(name: str) -> Callable[[C], C]:
    """Let the type `name` of the extension, if that is there, do what it can do in place of the decorated class.

    The class that takes the place has all other methods of the decorated one.
    """

    def choose(python: C) -> C:
        if c is None:
            return python
        base = getattr(c, name)
        body: dict[str, Any] = {
            name: value
            for name, value in vars(python).items()
            if name not in _OF_A_CLASS_ALONE
            and not isinstance(value, MemberDescriptorType)
            and (name not in vars(base) or name in ("__doc__", "__module__"))
        }
        bases = (base, *(each for each in python.__bases__ if each is not object))
        made: C = type(python)(python.__name__, bases, {**body, "__slots__": ()})
        _python[made] = python
        return made

    return choose


def python_of(made: C) -> C:
    """The class in Python whose place another one may have taken."""
    return _python.get(made, made)  # type: ignore[return-value]


def provide(**objects: object) -> None:
    """Tell the extension what it needs of the Python core."""
    if c is not None:
        c.provide(**objects)
