"""The worlds into which calls are injected: a purgatory and a timer on a virtual clock.

`PARTS` has the calls of each, and what is called inside them. A world checks its invariants itself: at once after a
call, and later, when all of its deadlines have passed.
"""

from typing import Final

from tests.support.injection import Part
from tests.support.worlds.purgatory import INTO_A_PURGATORY, OF_A_PURGATORY, World
from tests.support.worlds.timer import INTO_A_TIMER, OF_A_TIMER, TimerWorld

__all__ = ["PARTS"]

PARTS: Final[dict[str, Part]] = {
    "purgatory": Part(
        World, OF_A_PURGATORY, INTO_A_PURGATORY, ("plain", "odd keys", "listener", "max_pending", "purge")
    ),
    "timer": Part(TimerWorld, OF_A_TIMER, INTO_A_TIMER),
}
