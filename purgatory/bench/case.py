"""What is measured, and with which results: scenarios, which `find` knows by their names, and their cases."""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from itertools import product
from typing import Any, Final, Literal, TypeAlias

Figures: TypeAlias = "dict[str, float]"
"""The figures of one run of a case, by the keys of its scenario's metrics."""

Loop: TypeAlias = Literal["asyncio", "uvloop"]

LOOPS: Final[tuple[Loop, ...]] = ("asyncio", "uvloop")

OURS = "purgatory"
"""The name of this library's implementation in every scenario, or the beginning of that name."""

BEFORE = ", before"
"""The suffix of an implementation of ours that is measured with the library of another checkout."""

IN_PYTHON = ", in Python"
"""The suffix of an implementation of ours that is measured with the core in Python, beside the one in C."""


@dataclass(frozen=True, slots=True)
class Case:
    """An implementation on an event loop, with the parameters of its scenario."""

    scenario: str
    implementation: str
    loop: Loop
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = [
            f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}"
            for name, value in self.parameters.items()
        ]
        return f"{self.scenario}: " + ", ".join([self.implementation, self.loop, *shown])

    def is_ours(self) -> bool:
        """Whether this library is measured, and not a rival."""
        return self.implementation.startswith(OURS)


@dataclass(slots=True)
class Measured:
    """A case and the figures of each round. The cases of a scenario alternate in every round."""

    case: Case
    rounds: list[Figures] = field(default_factory=list)
    failed: str | None = None
    """The reason if the case is left out. Only the library of another checkout may fail to run a case."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One of the figures. If `compared`, tables have the ratio of an alternative's figure to ours; less is better."""

    key: str
    label: str
    unit: str
    compared: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """A question, the cases that answer it, and how a case is measured, in a process that does nothing else."""

    name: str
    title: str
    implementations: Iterable[str]
    full: Sequence[Mapping[str, Any]]
    """The parameters of a full run."""
    quick: Sequence[Mapping[str, Any]]
    """Those of a quick run, which is on the first loop only."""
    main: Callable[[Case], Coroutine[Any, Any, Figures]]
    """Measures a case, on its loop."""
    metrics: tuple[Metric, ...]
    loops: tuple[Loop, ...] = LOOPS
    missing: Callable[[Case], str | None] = lambda case: None
    """The reason if a case cannot be measured here."""

    def cases(self, quick: bool) -> list[Case]:
        """The cases of a quick run, or of a full one."""
        loops, parameters = (self.loops[:1], self.quick) if quick else (self.loops, self.full)
        return [Case(self.name, each, *where) for where in product(loops, parameters) for each in self.implementations]


GROUPS: Final = {
    "library": {
        "memory": "scenarios.pending",
        "callback": "scenarios.pending",
        "await": "scenarios.tasks",
        "wakeup": "scenarios.tasks",
        "storm": "scenarios.pending",
    },
    "HTTP": {"http": "web.clients", "arrivals": "web.clients", "events": "web.clients"},
    "server": {"appends": "server.clients", "readers": "server.clients"},
    "relay": {"relay": "relay.hearing"},
}
"""The modules of all scenarios in the order of their runs, in the groups that the help of the command shows."""

LIBRARY: Final = (*GROUPS["library"], *GROUPS["HTTP"])
SERVER: Final = tuple(GROUPS["server"])
EVERY: Final = {name: module for group in GROUPS.values() for name, module in group.items()}


@cache
def find(name: str) -> Scenario:
    """The scenario of that name. Imports its module alone, because all of them take most of a second."""
    module = import_module(f"purgatory.bench.{EVERY[name]}")
    return next(each for each in vars(module).values() if isinstance(each, Scenario) and each.name == name)
