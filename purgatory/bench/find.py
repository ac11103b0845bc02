"""The modules of the scenarios, by the names of these, in the order of their runs.

A process that measures one case imports the module of its scenario and no other: all of them take most of a second.
"""

from importlib import import_module
from typing import Final

from purgatory.bench.case import Scenario

__all__ = ["LIBRARY", "SERVER", "find"]

LIBRARY: Final = {
    "enqueue": "scenarios.enqueue",
    "size": "scenarios.size",
    "memory": "scenarios.memory",
    "wakeup": "scenarios.wakeup",
    "storm": "scenarios.storm",
    "callback": "scenarios.paths",
    "await": "scenarios.paths",
    "http": "scenarios.http",
    "events": "scenarios.events",
    "settings": "scenarios.settings",
    "threshold": "scenarios.threshold",
    "listeners": "scenarios.listeners",
    "silence": "scenarios.silence",
    "idle": "scenarios.idle",
    "queue": "scenarios.queue",
    "threads": "scenarios.threads",
    "versions": "scenarios.versions",
}
"""Those of the library."""

SERVER: Final = {
    "appends": "streams.appends",
    "reads": "streams.reads",
    "readers": "streams.readers",
    "delivery": "streams.delivery",
}
"""Those of `purgatory serve`."""


def find(name: str) -> Scenario:
    """The scenario of that name."""
    module = import_module("purgatory.bench." + {**LIBRARY, **SERVER}[name])
    return next(each for each in vars(module).values() if isinstance(each, Scenario) and each.name == name)
