"""Promise 2: `on_expiration` never runs before `clock.time() >= deadline`; late by less than a tick plus the lag."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import DelayedOperationPurgatory
from tests.support.operations import FaultLog, Flag, turn


class Expiring(Flag):
    """Notes how late it expires."""

    def __init__(self, timeout: float, purgatory: DelayedOperationPurgatory) -> None:
        super().__init__(timeout)
        self.purgatory = purgatory
        self.due = purgatory.timer.time() + timeout
        self.late: float | None = None

    def on_expiration(self) -> None:
        self.late = self.purgatory.timer.time() - self.due


@given(
    start=st.floats(0, 1e9),
    tick=st.sampled_from([0.0001, 0.0003, 0.001, 1 / 3, 1.0, 7.0, 60.0]) | st.floats(1e-4, 100),
    wheel_size=st.integers(2, 50),
    timeouts=st.lists(st.floats(0, 3e8) | st.floats(0, 1) | st.integers(0, 1000).map(lambda n: n / 1000), min_size=1),
)
def test_expiry_at_any_tick_is_never_early_and_late_by_less_than_a_tick(
    start: float, tick: float, wheel_size: int, timeouts: list[float]
) -> None:
    clock = FaultLog(start)
    purgatory = DelayedOperationPurgatory(clock=clock, tick=tick, wheel_size=wheel_size)
    operations = [Expiring(timeout, purgatory) for timeout in timeouts]
    for operation in operations:
        purgatory.try_complete_else_watch(operation, ["key"])
    clock.advance(max(timeouts) + 2 * tick)
    rounding = (start + max(timeouts) + tick) * 1e-15
    for operation in operations:
        assert operation.late is not None
        assert 0 <= operation.late <= tick + rounding


@pytest.mark.parametrize("tick", [0.0001, 0.001, 0.0107])
async def test_expiry_on_a_real_loop_is_never_early(tick: float) -> None:
    randomly = random.Random(1)
    async with DelayedOperationPurgatory(tick=tick) as purgatory:
        operations = []
        for _ in range(300):
            operation = Expiring(randomly.random() * 0.1, purgatory)
            operations.append(purgatory.try_complete_else_watch(operation, ["key"]))
            if randomly.random() < 0.2:
                await turn()
        await asyncio.wait_for(asyncio.gather(*operations), 30)
        assert all(operation.expired() for operation in operations)
        early = [operation.late for operation in operations if operation.late is None or operation.late < 0]
        assert early == []
