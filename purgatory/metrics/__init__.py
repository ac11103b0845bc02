"""Metrics of purgatories: for Prometheus in `purgatory.metrics.prometheus`, for OpenTelemetry in `.opentelemetry`.

Both export the same (`measures` has the list): what Kafka's purgatories do, and what operators need besides.

    Kafka                           here, as Prometheus names it
    NumDelayedOperations            purgatory_delayed_operations
    PurgatorySize                   purgatory_watched_entries
    ExpiresPerSec                   rate(purgatory_operations_total{outcome="expired"}[1m])

Counts and sizes are looked at when they are asked for, and cost nothing in between. How long operations waited and how
late they were is noted by a listener, when an operation finishes. Both come with the extra `metrics`.
"""
