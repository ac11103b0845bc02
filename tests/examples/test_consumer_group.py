"""The consumer group: every generation shares out all partitions, and waits for no member longer than it may."""

import asyncio
import math
import re
import subprocess
import sys

import pytest

from examples.consumer_group import ConsumerGroup, Membership, StaleMembership
from purgatory import PurgatoryClosed, PurgatoryMisuse
from tests.support.operations import FaultLog, turn
from tests.support.paths import ROOT

SESSION, JOIN = 10.0, 60.0


@pytest.fixture
def group(clock: FaultLog) -> ConsumerGroup:
    return ConsumerGroup(6, SESSION, JOIN, clock)


async def turns() -> None:
    for _ in range(3):
        await turn()


async def join(group: ConsumerGroup, membership: Membership | None = None) -> "asyncio.Task[Membership]":
    """A join that waits, or is done."""
    task = asyncio.ensure_future(group.join(membership))
    await turns()
    return task


async def joined(group: ConsumerGroup, count: int) -> list[Membership]:
    """A group of so many members, in the order in which they have joined."""
    members = [await group.join()]
    for _ in range(count - 1):
        new = await join(group)
        tasks = [await join(group, member) for member in members]
        members = [await task for task in [*tasks, new]]
    return members


def shares(members: list[Membership]) -> list[list[int]]:
    return [list(member.partitions) for member in members]


class TestJoin:
    async def test_join_waits_until_all_known_members_have_joined(self, group: ConsumerGroup) -> None:
        first, second = await joined(group, 2)
        new = await join(group)
        assert group.heartbeat(first)
        renewed = await join(group, first)
        assert not new.done()
        assert not renewed.done()
        assert group.heartbeat(second)
        last = await group.join(second)
        members = [await renewed, last, await new]
        assert [member.generation for member in members] == [3, 3, 3]
        assert shares(members) == [[0, 3], [1, 4], [2, 5]]
        assert not any(group.heartbeat(member) for member in members)

    async def test_member_that_has_not_joined_is_dropped_at_the_deadline(
        self, group: ConsumerGroup, clock: FaultLog
    ) -> None:
        absent = await group.join()
        new = await join(group)
        for _ in range(11):
            clock.advance(5.0)
            assert group.heartbeat(absent), "it lives, and is told to join again"
        clock.advance(4.999)
        await turns()
        assert not new.done()
        clock.advance(0.001)
        assert shares([await new]) == [[0, 1, 2, 3, 4, 5]]
        with pytest.raises(StaleMembership, match=f"member {absent.member} has left or was silent"):
            group.heartbeat(absent)
        assert len(group._timer) == 1, "nothing waits for the absent member"

    async def test_member_needs_no_heartbeats_while_its_join_waits(self, group: ConsumerGroup, clock: FaultLog) -> None:
        first, second = await joined(group, 2)
        renewed = await join(group, first)
        assert group.heartbeat(first), "not needed, and harmless"
        for _ in range(5):
            clock.advance(9.0)
            group.heartbeat(second)
        clock.advance(14.0)
        assert list((await renewed).partitions) == [0, 1, 2, 3, 4, 5], "the second one was silent"
        clock.advance(SESSION)
        assert not group.members, "heartbeats are due from the new generation on"

    def test_bad_values_are_refused(self) -> None:
        for value in (0, -1, math.inf, math.nan):
            with pytest.raises(ValueError, match=f"session_timeout must be more than 0 and finite, not {value}"):
                ConsumerGroup(6, session_timeout=value, join_timeout=1.0)
            with pytest.raises(ValueError, match=f"join_timeout must be more than 0 and finite, not {value}"):
                ConsumerGroup(6, session_timeout=1.0, join_timeout=value)
        with pytest.raises(ValueError, match="partitions must be more than 0 and finite, not 0"):
            ConsumerGroup(0, 1.0, 1.0)


class TestLeave:
    async def test_member_that_leaves_while_its_join_waits_gets_no_share(self, group: ConsumerGroup) -> None:
        first, second = await joined(group, 2)
        renewed = await join(group, first)
        group.leave(first)
        assert shares([await group.join(second)]) == [[0, 1, 2, 3, 4, 5]]
        with pytest.raises(StaleMembership, match="has left"):
            await renewed

    async def test_group_without_members_keeps_nothing(self, group: ConsumerGroup) -> None:
        for member in await joined(group, 3):
            group.leave(member)
        assert (group.members, group._joined, len(group._timer)) == ({}, set(), 0)
        assert (await group.join()).partitions == range(6)

    async def test_old_generation_is_refused(self, group: ConsumerGroup) -> None:
        first = await group.join()
        renewed = await group.join(first)
        for refused in (group.heartbeat, group.leave):
            with pytest.raises(StaleMembership, match="generation 1 is over, the group has 2"):
                refused(first)
        with pytest.raises(StaleMembership, match="generation 1 is over, the group has 2"):
            await group.join(first)
        with pytest.raises(StaleMembership, match="member x has left or was silent: join as a new one"):
            await group.join(Membership("x", 2, range(6)))
        assert not group.heartbeat(renewed), "nothing has changed"

    async def test_close_ends_waiting_joins_and_refuses_all_calls(self, group: ConsumerGroup) -> None:
        member = await group.join()
        new = await join(group)
        await group.aclose()
        for call in (new, group.join(), group.join(member)):
            with pytest.raises(PurgatoryClosed):
                await call
        for refused in (group.heartbeat, group.leave):
            with pytest.raises(PurgatoryClosed, match="the group is closed"):
                refused(member)


class TestCancelledJoin:
    @pytest.mark.parametrize("moment", ["while it waits", "before it is over", "as it is over"])
    async def test_member_whose_join_is_cancelled_has_left(self, group: ConsumerGroup, moment: str) -> None:
        first = await group.join()
        new = await join(group)
        if moment != "as it is over":
            new.cancel()
        if moment == "while it waits":
            await turns()
        first = await group.join(first)  # in the same iteration, if the other one is waiting
        new.cancel()
        with pytest.raises(asyncio.CancelledError):
            await new
        assert list(group.members) == [first.member]
        if group.heartbeat(first):
            first = await group.join(first)
        assert first.partitions == range(6)

    async def test_cancelled_task_of_a_closed_group_is_cancelled(self, group: ConsumerGroup) -> None:
        first = await group.join()
        new = await join(group)
        await group.join(first)
        new.cancel()  # its rebalance is over, and it has not gone on yet
        await group.aclose()
        with pytest.raises(asyncio.CancelledError):
            await new

    async def test_rebalance_goes_on_without_the_last_task_that_waits(
        self, group: ConsumerGroup, clock: FaultLog
    ) -> None:
        first, second = await joined(group, 2)
        new = await join(group)
        new.cancel()
        await turns()
        assert group.heartbeat(first)
        renewed = await join(group, first)
        assert not renewed.done()
        assert shares([await group.join(second), await renewed]) == [[1, 3, 5], [0, 2, 4]]


def test_program_ends_with_a_single_member_that_has_all_partitions() -> None:
    command = [sys.executable, "-m", "examples.consumer_group"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "a: generation 1, partitions [0, 1, 2, 3, 4, 5]"
    assert re.fullmatch(r"c: generation \d+, partitions \[0, 1, 2, 3, 4, 5\]", lines[-1])
    assert not done.stderr


async def test_call_that_is_refused_leaves_the_group_working() -> None:
    group = ConsumerGroup(6, SESSION, JOIN)
    membership = await group.join()
    with pytest.raises(PurgatoryMisuse):
        await asyncio.to_thread(group.leave, membership)
    assert list((await group.join()).partitions) == [0, 1, 2, 3, 4, 5]
    await group.aclose()
