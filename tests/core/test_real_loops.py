"""5,000 operations with random deadlines on real loops under load: none early, none lost."""

import asyncio
import random

import pytest

from purgatory import DelayedOperationPurgatory
from tests.support.operations import Flag, turn

OPERATIONS = 5_000
SECONDS = 0.5


class Timed(Flag):
    """Notes how late it expires."""

    __slots__ = ("deadline", "late", "loop")

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self.loop = asyncio.get_running_loop()
        self.deadline = self.loop.time() + timeout
        self.late: float | None = None

    def on_expiration(self) -> None:
        self.late = self.loop.time() - self.deadline


def busy(seconds: float) -> None:
    """Hold up the loop."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        pass


@pytest.mark.parametrize("blocked", [False, True], ids=["under load", "blocked for 100 ms at times"])
async def test_no_operation_is_early_and_none_is_lost(blocked: bool) -> None:
    randomly = random.Random(blocked)
    loop = asyncio.get_running_loop()
    async with DelayedOperationPurgatory() as purgatory:
        operations = []
        if blocked:
            for _ in range(5):
                loop.call_later(randomly.random() * SECONDS, busy, 0.1)
        for n in range(OPERATIONS):
            operation = Timed(randomly.random() * SECONDS)
            operations.append(purgatory.try_complete_else_watch(operation, [n % 100]))
            if n % 100 == 0:
                busy(0.002)
                await turn()
        while purgatory.num_delayed:
            busy(0.0002)
            await turn()
        lateness = [operation.late for operation in operations if operation.late is not None]
        assert len(lateness) == OPERATIONS
        assert [late for late in lateness if late < 0] == [], "early"
        assert purgatory.statistics().expired == OPERATIONS
