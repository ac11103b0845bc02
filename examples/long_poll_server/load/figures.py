"""Figures of many latencies."""

from collections.abc import Sequence
from statistics import quantiles


def percentile(values: Sequence[float], percent: int) -> float:
    """Below which so many percent of the values are."""
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def milliseconds(values: Sequence[float]) -> str:
    """The 50th, 90th and 99th percentile of these seconds, and the most."""
    middle = [percentile(values, percent) for percent in (50, 90, 99)]
    shown = (1000 * value for value in (*middle, max(values)))
    return " / ".join(f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in shown) + " ms"
