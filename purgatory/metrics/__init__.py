"""Metrics of purgatories: for Prometheus in `purgatory.metrics.prometheus`, for OpenTelemetry in `.opentelemetry`.

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
