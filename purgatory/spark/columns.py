"""The columns of a trace in Spark, and its rules in SQL. The same rules in columns are in `lives`."""

from typing import Final

from purgatory.spark.simulate import OUTCOMES

__all__ = ["COLUMNS", "DEADLINE", "IMPOSSIBLE", "UNKNOWN_DEADLINE", "schema"]

COLUMNS: Final = {
    "purgatory": "string",
    "operation": "string",
    "keys": "array<string>",
    "arrived_at": "timestamp",
    "timeout_s": "double",
    "deadline_s": "double",
    "waited_s": "double",
    "outcome": "string",
    "late_s": "double",
    "opened_at": "timestamp",
    "completes_s": "double",
    "date": "string",
    "instance": "string",
}
"""The columns of a trace that has been read, by Spark's types. `completes_s` is null where it is unknown.

In a journal of version 0.2 or older `deadline_s` and `opened_at` are null.
"""

IMPOSSIBLE: Final = {
    "purgatory": "purgatory is null",
    "operation": "operation is null",
    "keys": "keys is null or size(keys) = 0 or exists(keys, key -> key is null)",
    "arrived_at": "arrived_at is null",
    "timeout_s": "timeout_s < 0 or timeout_s = double('inf') or isnan(timeout_s)"
    " or timeout_s is null and outcome = 'expired'",
    "deadline_s": "deadline_s < 0 or deadline_s = double('inf') or isnan(deadline_s)",
    "waited_s": "waited_s is null or waited_s < 0 or waited_s = double('inf') or isnan(waited_s)",
    "outcome": f"outcome is null or outcome not in {OUTCOMES}",
    "late_s": "late_s < 0 or late_s = double('inf') or isnan(late_s) or (late_s is null) = (outcome = 'expired')",
    "completes_s": "completes_s < 0 or isnan(completes_s) or completes_s = double('inf') and outcome = 'satisfied'",
}
"""The impossible values of each column. A condition that is null does not match."""

DEADLINE: Final = """
    CASE WHEN deadline_s IS NOT NULL THEN deadline_s
         WHEN outcome = 'expired' AND abs(waited_s - late_s - timeout_s) > 1e-6 THEN greatest(waited_s - late_s, 0.0)
         WHEN outcome <> 'expired' AND waited_s > timeout_s THEN NULL
         ELSE timeout_s END
"""
"""Seconds from the arrival to the last deadline, as `lives.deadlines`; null is for ever.

Older journals do not have it, and their `timeout_s` counts from the last reschedule. It follows from the lateness of an
expired operation. Another operation that ended later than its timeout was rescheduled, or the loop was busy: its
deadline is unknown, and null too.
"""


UNKNOWN_DEADLINE: Final = "deadline_s IS NULL AND outcome <> 'expired' AND waited_s > timeout_s"
"""The condition for an unknown deadline."""


def schema() -> str:
    """The columns of a trace, in Spark's words."""
    return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
