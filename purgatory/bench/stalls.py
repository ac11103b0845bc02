"""The longest iteration of an event loop."""

import asyncio
import gc
import time
from collections.abc import Callable


class Heartbeat:
    """Beats once an iteration of the loop, and notes the longest iteration and the garbage collector's part of it."""

    def __init__(self) -> None:
        self.longest: float = 0.0
        """Seconds of the longest iteration."""
        self.collecting: float = 0.0
        """Seconds of the garbage collector in that iteration."""
        self._collected = 0.0

    async def until(self, done: Callable[[], bool]) -> None:
        """Beat until `done()` is true, which is called once an iteration."""
        gc.callbacks.append(self._collection)
        began, before = time.perf_counter(), self._collected
        try:
            while not done():
                await asyncio.sleep(0)
                now = time.perf_counter()
                if now - began > self.longest:
                    self.longest, self.collecting = now - began, self._collected - before
                began, before = now, self._collected
        finally:
            gc.callbacks.remove(self._collection)

    def _collection(self, phase: str, _: dict[str, int]) -> None:
        self._collected += time.perf_counter() * (-1 if phase == "start" else 1)
