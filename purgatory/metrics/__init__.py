"""Metrics of purgatories, for Prometheus and OpenTelemetry.

Both export the same figures (`measures` has the list): those of Kafka's purgatories, and others that operators need.

    Kafka                           here, as Prometheus names it
    NumDelayedOperations            purgatory_delayed_operations
    PurgatorySize                   purgatory_watched_entries
    ExpiresPerSec                   rate(purgatory_operations_total{outcome="expired"}[1m])
    (none)                          purgatory_missed_operations_total

The last one counts missing notifications: a condition had become true, no `check_and_complete` of one of its keys came,
and the last try at the deadline found it. It should be 0; in Kafka such an operation is a timeout like any other.

Counts and sizes are read when they are scraped, and cost nothing in between. A listener records how long operations
waited and how late they were, when an operation finishes. Both come with the extra `metrics`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from purgatory.metrics.opentelemetry import PurgatoryInstruments, observe_parking
    from purgatory.metrics.prometheus import JournalCollector, ParkingCollector, PurgatoryCollector

__all__ = ["JournalCollector", "ParkingCollector", "PurgatoryCollector", "PurgatoryInstruments", "observe_parking"]


def __getattr__(name: str) -> Any:
    """Import a class when it is first used: Prometheus' client and OpenTelemetry are not needed both."""
    if name in ("JournalCollector", "ParkingCollector", "PurgatoryCollector"):
        from purgatory.metrics import prometheus

        return getattr(prometheus, name)
    if name in ("PurgatoryInstruments", "observe_parking"):
        from purgatory.metrics import opentelemetry

        return getattr(opentelemetry, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
