"""The worlds into which calls are injected: a purgatory, a timer, thresholds, an idle tracker and versions, on a
virtual clock.

`PARTS` has the calls of each, and what is called inside them. A world checks its invariants itself: at once after a
call, and later, when all of its deadlines have passed.
"""

from typing import Final

from tests.support.injection import Part
from tests.support.worlds.family import (
    INTO_AN_IDLE_TRACKER,
    INTO_THRESHOLDS,
    OF_AN_IDLE_TRACKER,
    OF_THRESHOLDS,
    IdleWorld,
    ThresholdWorld,
)
from tests.support.worlds.purgatory import INTO_A_PURGATORY, OF_A_PURGATORY, World
from tests.support.worlds.timer import INTO_A_TIMER, OF_A_TIMER, TimerWorld
from tests.support.worlds.versions import INTO_VERSIONS, OF_VERSIONS, VersionsWorld

__all__ = ["PARTS"]

PARTS: Final[dict[str, Part]] = {
    "purgatory": Part(
        World, OF_A_PURGATORY, INTO_A_PURGATORY, ("plain", "odd keys", "listener", "max_pending", "purge")
    ),
    "timer": Part(TimerWorld, OF_A_TIMER, INTO_A_TIMER),
    "thresholds": Part(ThresholdWorld, OF_THRESHOLDS, INTO_THRESHOLDS),
    "idle tracker": Part(IdleWorld, OF_AN_IDLE_TRACKER, INTO_AN_IDLE_TRACKER, ("plain", "odd keys")),
    "versions": Part(VersionsWorld, OF_VERSIONS, INTO_VERSIONS, ("plain", "odd keys")),
}
