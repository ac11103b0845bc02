"""What an attack has done to the server and to others, beside the targets."""

from collections import Counter
from dataclasses import dataclass
from statistics import quantiles
from typing import Any, Final

from rich.table import Table

__all__ = ["Check", "Outcome", "checks", "summary"]

MEMORY: Final = 300 * 1024 * 1024
BARE: Final = 60 * 1024 * 1024
"""The memory of a server before any attack, where nothing but the extra `server` is installed.

The command imports what other extras have brought, 130 MiB with Spark's, so its growth is what the target is about.
"""
LONGEST: Final = 1.0
"""Seconds until an answer to the probe."""
P99: Final = 0.5
"""Seconds until 99 % of the probe's appends are answered."""
ACCEPTED: Final = (200, 204)


@dataclass(frozen=True, slots=True)
class Check:
    """A fact of one attack, beside the targets of all."""

    name: str
    seen: str
    expected: str
    ok: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of an attack. Times are in seconds, sizes in bytes."""

    name: str
    seconds: float
    begin: int
    """The server's memory before the attack."""
    memory: int
    longest: float
    p99: float
    probes: int
    refusals: dict[str, int]
    """What the probe got in place of an answer, by status: "none" is a connection without one."""
    statuses: dict[str, int]
    """What the attackers got: "waiting" is a request without an answer so far."""
    without_retry_after: int
    """How many of those were 429 or 503, and did not say when to come again."""
    tracebacks: int
    """In the log of the server."""
    notes: list[str]
    checks: list[Check]
    timed: bool = True
    """Whether the targets of time and refusals apply."""

    @classmethod
    def of(cls, name: str, measured: dict[str, Any], **more: Any) -> "Outcome":
        """With what the probe has measured."""
        every = [*measured["reads"], *measured["appends"]]
        appends = [seconds for seconds, _ in measured["appends"]]
        refused = Counter(str(status or "none") for _, status in every if status not in ACCEPTED)
        return cls(
            name,
            begin=measured["begin"],
            memory=measured["memory"],
            longest=max(seconds for seconds, _ in every),
            p99=quantiles(appends, n=100, method="inclusive")[98] if len(appends) > 1 else max(appends),
            probes=len(every),
            refusals=dict(sorted(refused.items())),
            **more,
        )

    @property
    def grown(self) -> int:
        """By how many bytes the server has grown."""
        return self.memory - self.begin

    @property
    def missed(self) -> list[str]:
        """The names of the targets that are missed."""
        times = {"probe": self.longest >= LONGEST, "appends": self.p99 >= P99, "refused": bool(self.refusals)}
        found = {
            "memory": self.grown >= MEMORY - BARE,
            **(times if self.timed else {}),
            "Retry-After": self.without_retry_after > 0,
            "log": self.tracebacks > 0,
            "checks": not all(check.ok for check in self.checks),
        }
        return [name for name, missed in found.items() if missed]


def summary(outcomes: list[Outcome]) -> Table:
    """A line for each attack."""
    table = Table(
        title=f"Targets: memory < {MEMORY >> 20} MiB (grown by < {(MEMORY - BARE) >> 20} MiB), probe's longest answer"
        f" < {LONGEST:g} s, 99 % of its appends < {P99:g} s, never refused",
    )
    for name in ("attack", "memory", "grown by", "longest", "appends"):
        table.add_column(name, justify="left" if name == "attack" else "right")
    for name in ("probe refused", "attackers got", "missed"):
        table.add_column(name)
    for each in outcomes:
        got = "\n".join([_counts(each.statuses), *each.notes])
        times = [f"{each.longest:.2f} s", f"{each.p99:.3f} s"]
        if not each.timed:
            times = [f"({time})" for time in times]
        cells = [
            each.name,
            f"{each.memory >> 20:,} MiB",
            f"{each.grown >> 20:,} MiB",
            *times,
            _counts(each.refusals) or "-",
            got,
        ]
        table.add_row(*cells, ", ".join(each.missed) or "-", style="red" if each.missed else None)
    return table


def checks(outcomes: list[Outcome]) -> Table:
    """A line for each check."""
    table = Table("attack", "request or fact", "seen", "expected", "", title="Statuses and facts")
    for outcome in outcomes:
        for each in outcome.checks:
            cells = [outcome.name, each.name, each.seen, each.expected, "" if each.ok else "missed"]
            table.add_row(*cells, style=None if each.ok else "red")
    return table


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{status}: {count:,}" for status, count in counts.items())
