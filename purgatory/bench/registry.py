"""The scenarios, by their names, in the order of their runs.

A process that measures one case imports the module of its scenario and no other: all of them take most of a second.
"""

from functools import cache
from importlib import import_module
from typing import Final

from purgatory.bench.case import Scenario

__all__ = ["EVERY", "LIBRARY", "SERVER", "find"]

LIBRARY: Final = {
    "memory": "scenarios.memory",
    "callback": "scenarios.paths",
    "await": "scenarios.paths",
    "wakeup": "scenarios.wakeup",
    "storm": "scenarios.storm",
    "http": "web.polls",
    "events": "web.events",
}
"""Those of the library, and their modules."""

SERVER: Final = {"appends": "server.appends", "readers": "server.readers"}
"""Those of `purgatory serve`."""

EVERY: Final = {**LIBRARY, **SERVER}


@cache
def find(name: str) -> Scenario:
    """The scenario of that name."""
    module = import_module(f"purgatory.bench.{EVERY[name]}")
    return next(each for each in vars(module).values() if isinstance(each, Scenario) and each.name == name)
