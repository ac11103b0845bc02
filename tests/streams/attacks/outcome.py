"""What an attack has done to the server and to others, beside the targets."""

from dataclasses import dataclass
from typing import Final

from rich.table import Table

__all__ = ["BARE", "MEMORY", "Check", "Outcome", "checks", "summary"]

MEMORY: Final = 300 * 1024 * 1024
BARE: Final = 60 * 1024 * 1024
"""The memory of a server before any attack, where nothing but the extra `server` is installed.

The command imports what other extras have brought, 130 MiB with Spark's, so its growth is what the target is about.
"""
LONGEST: Final = 1.0
"""Seconds until an answer to the probe."""
P99: Final = 0.5
"""Seconds until 99 % of the probe's appends are answered."""


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
    timed: bool
    """Whether the targets of time and refusals apply."""

    @property
    def grown(self) -> int:
        """By how many bytes the server has grown."""
        return self.memory - self.begin

    @property
    def missed(self) -> list[str]:
        """The names of the targets that are missed."""
        found = {
            "memory": self.grown >= MEMORY - BARE,
            "probe": self.timed and self.longest >= LONGEST,
            "appends": self.timed and self.p99 >= P99,
            "refused": self.timed and bool(self.refusals),
            "Retry-After": self.without_retry_after > 0,
            "log": self.tracebacks > 0,
            "checks": not all(check.ok for check in self.checks),
        }
        return [name for name, missed in found.items() if missed]


def summary(outcomes: list[Outcome]) -> Table:
    """A line for each attack. Times for which there is no target are in brackets."""
    columns = ("attack", "memory", "grown by", "longest", "appends", "probe refused", "attackers got", "missed")
    targets = (
        f"memory grown by < {(MEMORY - BARE) >> 20} MiB, probe's longest answer < {LONGEST:g} s, 99 % of its appends"
    )
    table = Table(*columns, title=f"Targets: {targets} < {P99:g} s, never refused")
    for each in outcomes:
        form = "{}" if each.timed else "({})"
        table.add_row(
            each.name,
            f"{each.memory >> 20:,} MiB",
            f"{each.grown >> 20:,} MiB",
            form.format(f"{each.longest:.2f} s"),
            form.format(f"{each.p99:.3f} s"),
            _counts(each.refusals),
            "\n".join([_counts(each.statuses), *each.notes]),
            ", ".join(each.missed),
            style="red" if each.missed else None,
        )
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
