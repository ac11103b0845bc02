"""Demo traffic: operations that wait in a purgatory of their own, to be looked at."""

import random
from collections.abc import Callable
from typing import Final

from purgatory import Clock, DelayedOperationPurgatory, Handle, PurgatoryClosed

MAX_PENDING: Final = 10_000
"""The most operations."""
INTERVAL: Final = 0.05
"""Seconds from one step to the next."""
SLICE: Final = 250
"""Operations that come, or are cancelled, in one step, which takes a millisecond or two."""
KEYS: Final = 500
RATE: Final = 1.0
"""Checks of a key per second."""
TIMEOUTS: Final = (0.5, 100.0)
"""The shortest and the longest timeout, in seconds, so that each level of the timer has some."""
FIRST: Final = 300
"""Operations that wait when a viewer comes, unless a viewer has chosen another number."""
UNSEEN: Final = 10.0
"""Seconds without a viewer, or a request for more, after which the traffic ends on its own."""


class Demo:
    """Keeps a number of operations pending by replacing finished ones. About half finish by their condition."""

    def __init__(
        self, unseen: Callable[[], float], *, clock: Clock | None = None, draw: random.Random | None = None
    ) -> None:
        """Make traffic that ends without viewers. `unseen` returns the seconds without one."""
        self.purgatory = DelayedOperationPurgatory("demo", clock=clock)
        self.pending = 0
        """The requested number of operations."""
        self._unseen = unseen
        self._draw = draw or random.Random()
        self._values = [0] * KEYS
        self._swept = 0
        self._asked = 0.0
        self._next: Handle | None = None
        self._is_chosen = False

    def seen(self) -> None:
        """Fill the wheels, because a viewer has come."""
        if not self._is_chosen:
            self.keep(FIRST)
            for _ in range(FIRST):
                self._add()

    def keep(self, pending: int) -> None:
        """Keep `pending` operations waiting, adjusting the number gradually."""
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
        # Reached before twice the timeout, on average, and so for half of them before the deadline.
        value = self._values[key] + 1 + int(2 * self._draw.random() * timeout * RATE)
        self.purgatory.wait_for(lambda: self._values[key] >= value, key, timeout=timeout)

    def _cancel(self, many: int) -> None:
        """Cancel about `many` operations, or a slice of them, by taking keys in turn."""
        many = min(many, SLICE)
        while many > 0:
            many -= len(self.purgatory.cancel_for_key(self._swept))
            self._swept = (self._swept + 1) % KEYS
