"""Metrics of purgatories, for Prometheus and OpenTelemetry.

Both export the same figures, listed in `measures`: the figures of Kafka's purgatories, and others that operators need.

    Kafka                           here, as Prometheus names it
    NumDelayedOperations            purgatory_delayed_operations
    PurgatorySize                   purgatory_watched_entries
    ExpiresPerSec                   rate(purgatory_operations_total{outcome="expired"}[1m])
    (none)                          purgatory_missed_operations_total

The last one counts missing notifications: a condition became true without a later `check_and_complete` of its keys, so
only the last try at the deadline found it. It should be 0. In Kafka such an operation is a timeout like any other.

Counts and sizes are read when they are scraped, and cost nothing in between. When an operation finishes, a listener
records how long it waited and how late it was. Both need the extra `metrics`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from purgatory.metrics.opentelemetry import PurgatoryInstruments, observe_parking
    from purgatory.metrics.prometheus import JournalCollector, ParkingCollector, PurgatoryCollector

__all__ = ["JournalCollector", "ParkingCollector", "PurgatoryCollector", "PurgatoryInstruments", "observe_parking"]


def __getattr__(name: str) -> Any:
    """Import a class when it is first used, because it needs only one of the two client libraries."""
    if name in ("JournalCollector", "ParkingCollector", "PurgatoryCollector"):
        from purgatory.metrics import prometheus

        return getattr(prometheus, name)
    if name in ("PurgatoryInstruments", "observe_parking"):
        from purgatory.metrics import opentelemetry

        return getattr(opentelemetry, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
