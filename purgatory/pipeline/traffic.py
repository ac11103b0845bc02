"""The model of traffic: the arrivals of operations, their times to complete, and their keys.

The model is that of the benchmark of Kafka's purgatory redesign proposal: operations arrive at exponential intervals,
and would take a log-normal time to complete, given by its 50th and 75th percentile, if no timeout came first. To that
come the troubles of real services: an instance that is slow, clients that go away, checks that were forgotten, and
changes that wake many watchers at once.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Final

from purgatory.spark.errors import PipelineError

NORMAL_75: Final = 0.674490
"""The 75th percentile of the standard normal distribution."""

_YEAR: Final = 366 * 86_400

_MOST: Final = 1e13
"""The most operations: days of a very large service."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic of each instance of a service. Times are in seconds."""

    rate: float = 10_000.0
    """Operations a second that arrive at an instance, on average."""
    seconds: float = 60.0
    """The duration of the traffic."""
    instances: int = 1
    median: float = 0.020
    upper_quartile: float = 0.060
    """50th and 75th percentile of the time to complete."""
    timeout: float = 1.0
    keys: int = 100
    """The number of keys."""
    keys_per_operation: int = 3
    """The number of keys that an operation draws. A key drawn twice is watched once, as in the proposal's benchmark."""
    zipf: float = 0.0
    """The key of rank r is drawn in proportion to `1 / r ** zipf`: 0 is uniform, 1 is Zipf's law."""
    slowest: float = 1.0
    """How many times as long operations of the last instance take."""
    together: int = 1
    """How many operations, one after the other, wait for the same change, and have the same keys."""
    cancelled: float = 0.0
    """The share that is cancelled at some moment of its wait."""
    missed: float = 0.0
    """The share whose check was forgotten, so that it waits until its deadline."""
    seed: int = 0
    start: float = 1_750_000_000.0
    """The start of the traffic, in seconds since 1970, in UTC."""
    purgatory: str = "generated"
    operation: str = "Request"
    """The values of the columns of these names."""

    def __post_init__(self) -> None:
        """Raise `PipelineError`, which names the field, for traffic that cannot be generated."""
        for name, least, most in (
            ("rate", 1e-6, 1e9),
            ("seconds", 1e-3, _YEAR),
            ("median", 1e-6, _YEAR),
            ("upper_quartile", 1e-6, _YEAR),
            ("timeout", 0.0, _YEAR),
            ("zipf", 0.0, 10.0),
            ("slowest", 1.0, 1e6),
            ("cancelled", 0.0, 1.0),
            ("missed", 0.0, 1.0),
            ("start", 0.0, 1e10),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
                raise PipelineError(f"{name} must be a number from {least:g} to {most:g}, not {value!r}")
        for name, lowest, highest in (
            ("instances", 1, 100_000),
            ("keys", 1, 10_000_000),
            ("keys_per_operation", 1, 100),
            ("together", 1, 10_000),
            ("seed", 0, 2**63 - 1),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
                raise PipelineError(f"{name} must be a whole number from {lowest} to {highest}, not {value!r}")
        if self.upper_quartile < self.median:
            raise PipelineError(
                f"upper_quartile, {self.upper_quartile!r}, must not be less than median, {self.median!r}"
            )
        if self.rate * self.seconds * self.instances > _MOST:
            raise PipelineError(f"rate times seconds times instances must not be more than {_MOST:g} operations")
        for name in ("purgatory", "operation"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise PipelineError(f"{name} must be a name, not {value!r}")

    @property
    def mu(self) -> float:
        """The mean of the logarithm of the time to complete."""
        return math.log(self.median)

    @property
    def sigma(self) -> float:
        """The standard deviation of the logarithm of the time to complete."""
        return (math.log(self.upper_quartile) - self.mu) / NORMAL_75

    def with_changes(self, **changes: Any) -> "Traffic":
        """Return a copy with the given fields replaced. `None` leaves a field unchanged. Raises as the constructor."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


PRESETS: Final = {
    "low": Traffic(median=0.020, upper_quartile=0.060, timeout=1.0),
    "high": Traffic(median=0.200, upper_quartile=0.400, timeout=3.0),
    "service": Traffic(
        rate=1_000.0,
        instances=4,
        median=0.300,
        upper_quartile=0.700,
        timeout=3.0,
        zipf=1.0,
        slowest=4.0,
        together=5,
        cancelled=0.02,
        missed=0.002,
    ),
}
"""The proposal's two scenarios, with a low and a high rate of timeouts and with longer timeouts than its 200 ms, and a
service with troubles."""
