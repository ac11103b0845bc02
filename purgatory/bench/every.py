"""All scenarios, in the order of their runs."""

from typing import Final

from purgatory.bench.find import LIBRARY, SERVER, find

__all__ = ["EVERY", "SCENARIOS", "STREAMS"]

SCENARIOS: Final = {name: find(name) for name in LIBRARY}
"""Those of the library."""

STREAMS: Final = {name: find(name) for name in SERVER}
"""Those of `purgatory serve`."""

EVERY: Final = {**SCENARIOS, **STREAMS}
