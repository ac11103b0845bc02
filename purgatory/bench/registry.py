"""The scenarios, by their names, in the order of their runs.

A process that measures one case imports the module of its scenario and no other: all of them take most of a second.
"""

from functools import cache
from importlib import import_module
from typing import Final

from purgatory.bench.case import Scenario

CORE: Final = {
    "memory": "scenarios.memory",
    "callback": "scenarios.paths",
    "await": "scenarios.paths",
    "wakeup": "scenarios.wakeup",
    "storm": "scenarios.storm",
}
"""Those of the library's core, and their modules."""

HTTP: Final = {"http": "web.polls", "events": "web.events"}
"""Those of its responses that wait."""

LIBRARY: Final = {**CORE, **HTTP}

SERVER: Final = {"appends": "server.appends", "readers": "server.readers"}
"""Those of `purgatory serve`."""

BROKERS: Final = {"relay": "relay.hearing"}
"""Those that need Redis and PostgreSQL, which no extra brings."""

EVERY: Final = {**LIBRARY, **SERVER, **BROKERS}

GROUPS: Final = {"library": CORE, "HTTP": HTTP, "server": SERVER, "relay": BROKERS}
"""All of them, as the help of the command shows them."""


@cache
def find(name: str) -> Scenario:
    """The scenario of that name."""
    module = import_module(f"purgatory.bench.{EVERY[name]}")
    return next(each for each in vars(module).values() if isinstance(each, Scenario) and each.name == name)
