"""What is measured, and what is said of it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

__all__ = ["ALONE", "BEFORE", "LOOPS", "OURS", "UNLIMITED", "Case", "Figures", "Measured", "Metric", "Plot", "Scenario"]

Figures: TypeAlias = "dict[str, float]"
"""What one run of a case has given, by the keys of its scenario's metrics."""

Loop: TypeAlias = Literal["asyncio", "uvloop"]

LOOPS: Final[tuple[Loop, ...]] = ("asyncio", "uvloop")

OURS = "purgatory"
"""Every scenario's own implementation is called so, or begins so."""

BEFORE = ", before"
"""The suffix of an implementation of ours that is measured with the library of another checkout."""

ALONE = "driver alone"
"""What a scenario's own part costs, with nothing to be measured."""

UNLIMITED = "unlimited"
"""A target rate: as fast as it goes."""


@dataclass(frozen=True, slots=True)
class Case:
    """An implementation on an event loop, with the parameters of its scenario."""

    scenario: str
    implementation: str
    loop: Loop
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        parameters = ", ".join(f"{name} {_short(value)}" for name, value in self.parameters.items())
        return f"{self.scenario}: {self.implementation}, {self.loop}" + (f", {parameters}" if parameters else "")


@dataclass(slots=True)
class Measured:
    """A case and what each round has given; the rounds of all cases of a scenario went in turn."""

    case: Case
    rounds: list[Figures] = field(default_factory=list)
    failed: str | None = None
    """Why the case is left out, if it is: only the library of another checkout may fail to run a case."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One of the figures. Where `compared`, what counts is how many times ours an alternative's is; less is better."""

    key: str
    label: str
    unit: str
    compared: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture of `metric` against the parameter `x`; a panel for each value of `panel` and for each loop."""

    name: str
    metric: str
    x: str | None = None
    panel: str | None = None
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """A question, the cases that answer it, and how a case is measured, in a process that does nothing else."""

    name: str
    title: str
    cases: Callable[[bool], list[Case]]
    """Those of a quick run, or of a full one."""
    measure: Callable[[Case], Figures]
    metrics: tuple[Metric, ...]
    plots: tuple[Plot, ...] = ()
    missing: Callable[[], str | None] = lambda: None
    """Why it cannot be measured here, if it cannot."""
    all_ours: bool = False
    """Whether every implementation is this library, used in different ways."""

    def before_and_after(self, cases: Iterable[Case]) -> list[Case]:
        """Those of `cases` that measure this library, each followed by itself with the library of another checkout."""
        ours = [case for case in cases if self.all_ours or case.implementation.startswith(OURS)]
        return [each for case in ours for each in (case, replace(case, implementation=case.implementation + BEFORE))]


def _short(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
