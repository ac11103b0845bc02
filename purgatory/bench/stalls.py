"""The longest iteration of an event loop."""

import asyncio
import gc
import time
from collections.abc import Callable

__all__ = ["Heartbeat"]


class Heartbeat:
    """Beats once an iteration of the loop, and notes the longest iteration and the garbage collector's part of it."""

    def __init__(self) -> None:
        self.longest: float = 0.0
        """Seconds of the longest iteration."""
        self.collecting: float = 0.0
        """Seconds of the garbage collector in that iteration."""
        self.own: float = 0.0
        """Seconds of the longest iteration, without the collector's seconds."""
        self._collections = 0.0
        self._began = 0.0
        self._last = 0.0
        self._seen = 0.0

    async def until(self, done: Callable[[], bool]) -> None:
        """Beat until `done()` is true, which is called once an iteration."""
        loop = asyncio.get_running_loop()
        gc.callbacks.append(self._collection)
        self._last = time.perf_counter()
        self._seen = self._collections
        try:
            while not done():
                next_turn = loop.create_future()
                loop.call_soon(next_turn.set_result, None)
                await next_turn
                self._beat()
        finally:
            gc.callbacks.remove(self._collection)

    def _beat(self) -> None:
        now = time.perf_counter()
        turn = now - self._last
        collecting = self._collections - self._seen
        if turn > self.longest:
            self.longest = turn
            self.collecting = collecting
        self.own = max(self.own, turn - collecting)
        self._last = now
        self._seen = self._collections

    def _collection(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self._collections += time.perf_counter() - self._began
