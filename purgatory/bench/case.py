"""What is measured, and with which results: scenarios, which `find` knows by their names, and their cases."""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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

    @property
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


def with_variants(cases: Iterable[Case], suffix: str) -> Iterator[Case]:
    """The cases, each of this library followed by the same one whose implementation has that suffix."""
    for case in cases:
        yield case
        if case.is_ours:
            yield replace(case, implementation=case.implementation + suffix)


CORE: Final = {
    "memory": "scenarios.pending",
    "callback": "scenarios.pending",
    "await": "scenarios.tasks",
    "wakeup": "scenarios.tasks",
    "storm": "scenarios.storm",
}
"""The scenarios of the library's core, in the order of their runs, and their modules."""

HTTP: Final = {"http": "web.polls", "events": "web.events"}
"""Those of its responses that wait."""

SERVER: Final = {"appends": "server.appends", "readers": "server.readers"}
"""Those of `purgatory serve`."""

BROKERS: Final = {"relay": "relay.hearing"}
"""Those that need Redis and PostgreSQL, which no extra brings."""

GROUPS: Final = {"library": CORE, "HTTP": HTTP, "server": SERVER, "relay": BROKERS}
"""All of them, as the help of the command shows them."""

LIBRARY: Final = {**CORE, **HTTP}
EVERY: Final = {**LIBRARY, **SERVER, **BROKERS}


@cache
def find(name: str) -> Scenario:
    """The scenario of that name. Imports its module alone, because all of them take most of a second."""
    module = import_module(f"purgatory.bench.{EVERY[name]}")
    return next(each for each in vars(module).values() if isinstance(each, Scenario) and each.name == name)
