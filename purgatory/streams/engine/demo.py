"""Demo traffic: operations that wait in a purgatory of their own, for people to look at."""

import random
from collections.abc import Callable
from typing import Final

from purgatory import Clock, DelayedOperation, DelayedOperationPurgatory, Handle, PurgatoryClosed

__all__ = ["MAX_PENDING", "Demo"]

MAX_PENDING: Final = 10_000
"""Operations, at most."""
INTERVAL: Final = 0.05
"""Seconds from one step to the next."""
SLICE: Final = 250
"""So many operations come, or are cancelled, in one step: a millisecond of work or two."""
KEYS: Final = 500
RATE: Final = 1.0
"""How often a key is checked, a second."""
TIMEOUTS: Final = (0.5, 100.0)
"""Seconds, the shortest and the longest, so that each level of the timer has some."""
FIRST: Final = 300
"""So many wait when a viewer comes, unless one has chosen another number."""
UNSEEN: Final = 10.0
"""Seconds without a viewer, or a request for more, after which the traffic ends by itself."""


class DelayedDemo(DelayedOperation[None]):
    """Completes when the value of its key has grown to `value`."""

    __slots__ = ("key", "value", "values")

    def __init__(self, values: list[int], key: int, value: int, timeout: float) -> None:
        super().__init__(timeout)
        self.values: list[int] = values
        self.key: int = key
        self.value: int = value

    def try_complete(self) -> bool:
        return self.values[self.key] >= self.value and self.force_complete()

    def on_complete(self) -> None:
        pass


class Demo:
    """Keeps a number of operations pending: a finished one is replaced. About half finish by their condition."""

    def __init__(
        self, unseen: Callable[[], float], *, clock: Clock | None = None, draw: random.Random | None = None
    ) -> None:
        """`unseen` returns the seconds without a viewer."""
        self.purgatory = DelayedOperationPurgatory("demo", clock=clock)
        self.pending = 0
        """How many are wanted."""
        self._unseen = unseen
        self._draw = draw or random.Random()
        self._values = [0] * KEYS
        self._swept = 0
        self._asked = 0.0
        self._next: Handle | None = None
        self._is_chosen = False

    def seen(self) -> None:
        """A viewer has come, who sees wheels that are not empty."""
        if not self._is_chosen:
            self.keep(FIRST)
            for _ in range(FIRST):
                self._add()

    def keep(self, pending: int) -> None:
        """Have so many wait, in a moment: they come, and go, in slices."""
        self.pending = pending
        self._is_chosen = True
        self._asked = self.purgatory.timer.time()
        if self._next is None and (pending or self.purgatory.num_delayed):
            self._schedule_step()

    def _schedule_step(self) -> None:
        clock = self.purgatory.timer.clock
        self._next = clock.call_at(clock.time() + INTERVAL, self._step)

    def _step(self) -> None:
        self._next = None
        if min(self._unseen(), self.purgatory.timer.time() - self._asked) > UNSEEN:
            self.pending = 0
            self._is_chosen = False
        for key in self._draw.choices(range(KEYS), k=int(KEYS * RATE * INTERVAL)):
            self._values[key] += 1
            self.purgatory.check_and_complete_soon(key)
        missing = self.pending - self.purgatory.num_delayed
        if missing > 0:
            try:
                for _ in range(min(missing, SLICE)):
                    self._add()
            except PurgatoryClosed:
                return
        else:
            self._cancel(-missing)
        if self.pending or self.purgatory.num_delayed:
            self._schedule_step()

    def _add(self) -> None:
        shortest, longest = TIMEOUTS
        timeout = shortest * (longest / shortest) ** self._draw.random()
        key = self._draw.randrange(KEYS)
        # Reached, on average, some time before twice the timeout: for half of them before the deadline.
        checks = 1 + int(2 * self._draw.random() * timeout * RATE)
        self.purgatory.try_complete_else_watch(
            DelayedDemo(self._values, key, self._values[key] + checks, timeout), [key]
        )

    def _cancel(self, many: int) -> None:
        """About so many, or a slice of them: those of some keys, in turn."""
        many = min(many, SLICE)
        while many > 0:
            many -= len(self.purgatory.cancel_for_key(self._swept))
            self._swept = (self._swept + 1) % KEYS
