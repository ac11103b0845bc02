"""Demo traffic: operations that wait in a purgatory of their own, for people to look at."""

import random
from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from examples.long_poll_server import requests
from examples.long_poll_server.limits import Held
from purgatory import DelayedOperation, DelayedOperationPurgatory, PurgatoryClosed
from purgatory.clock import Clock, Handle

MAX_PENDING = 10_000
MAX_BODY_BYTES = 1024
INTERVAL = 0.05
"""Seconds from one step to the next."""
SLICE = 250
"""So many operations come, or are cancelled, in one step: a millisecond of work or two."""
KEYS = 500
RATE = 1.0
"""How often a key is checked, a second."""
TIMEOUTS = (0.5, 100.0)
"""Seconds, the shortest and the longest, so that each level of the timer has some."""
UNSEEN = 10.0
"""Seconds without a viewer, or a request for more, after which the traffic ends by itself."""


class DelayedDemo(DelayedOperation[None]):
    """Completes when the value of its key has grown to `value`."""

    def __init__(self, values: list[int], key: int, value: int, timeout: float) -> None:
        super().__init__(timeout)
        self.values = values
        self.key = key
        self.value = value

    def try_complete(self) -> bool:
        return self.values[self.key] >= self.value and self.force_complete()

    def on_complete(self) -> None:
        pass


class Demo:
    """Keeps a number of operations pending: whatever has finished is replaced. About half finish by their condition."""

    def __init__(
        self,
        unseen: Callable[[], float],
        *,
        bodies: Held | None = None,
        clock: Clock | None = None,
        draw: random.Random | None = None,
    ) -> None:
        """`unseen` returns the seconds without a viewer. The bodies that are read count among `bodies`."""
        self.purgatory = DelayedOperationPurgatory("demo", clock=clock)
        self.pending = 0
        """How many are wanted."""
        self._unseen = unseen
        self._bodies = requests.bodies() if bodies is None else bodies
        self._draw = draw or random.Random()
        self._values = [0] * KEYS
        self._swept = 0
        self._asked = 0.0
        self._next: Handle | None = None

    def keep(self, pending: int) -> None:
        """Have so many wait, in a moment: they come, and go, in slices."""
        self.pending = pending
        self._asked = self.purgatory.timer.time()
        if self._next is None and (pending or self.purgatory.num_delayed):
            self._go_on()

    async def put(self, request: Request) -> Response:
        """`PUT /demo` with `{"pending": N}`."""
        self.keep(await self._wanted(request))
        return JSONResponse({"pending": self.pending})

    async def _wanted(self, request: Request) -> int:
        pending = await requests.member(request, "pending", self._bodies, MAX_BODY_BYTES)
        if isinstance(pending, float) and pending.is_integer():
            pending = int(pending)  # JSON knows one kind of number
        if type(pending) is not int or not 0 <= pending <= MAX_PENDING:
            raise HTTPException(400, f"pending must be a whole number from 0 to {MAX_PENDING}")
        return pending

    def _go_on(self) -> None:
        clock = self.purgatory.timer.clock
        self._next = clock.call_at(clock.time() + INTERVAL, self._step)

    def _step(self) -> None:
        self._next = None
        if min(self._unseen(), self.purgatory.timer.time() - self._asked) > UNSEEN:
            self.pending = 0
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
            self._go_on()

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
        for _ in range(KEYS):
            if many <= 0:
                return
            many -= len(self.purgatory.cancel_for_key(self._swept))
            self._swept = (self._swept + 1) % KEYS


async def refuse(request: Request) -> Response:
    """`PUT /demo` where there is none."""
    raise HTTPException(403, "the server makes no demo traffic unless it is started with --demo")
