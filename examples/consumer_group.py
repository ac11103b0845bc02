"""Several consumers must share partitions, and share them again when one joins, leaves or falls silent.

Then a rebalance begins: heartbeats return `True`, and the members join again. A join waits until all
members have joined, or until `join_timeout` drops those that have not. Then a generation begins, with new shares.

Kafka's group coordinator did this with its `DelayedJoin`, until the coordinator was replaced in March 2025.
The group is in memory, in this one file to copy. `consumer_group.md` is the guide.
"""

import asyncio
from dataclasses import dataclass
from uuid import uuid4

from purgatory import Clock, DelayedOperation, DelayedOperationPurgatory, PurgatoryClosed, TimerTask


class StaleMembership(LookupError):
    """The member was dropped, or its generation is over. `join()` begins a new membership."""


@dataclass(frozen=True, slots=True)
class Membership:
    member: str
    generation: int
    partitions: range  # the member's share


class Member(TimerTask):
    """A member. It is in the timer while it must send heartbeats, which is not while its join waits."""

    def __init__(self, group: "ConsumerGroup") -> None:
        super().__init__()
        self.group, self.id = group, str(uuid4())
        self.membership = Membership(self.id, group.generation, range(0))

    def run(self) -> None:
        self.group._drop(self)  # it was silent for too long


class Rebalance(DelayedOperation[None]):
    """Waits until all members have joined. At its deadline it drops those that have not."""

    def __init__(self, group: "ConsumerGroup") -> None:
        super().__init__(group.join_timeout)
        self.group = group

    def try_complete(self) -> bool:
        return len(self.group._joined) == len(self.group.members) and self.force_complete()

    def on_complete(self) -> None:
        self.group._begin_generation()


class ConsumerGroup:
    """The members of a group, which share `partitions` partitions."""

    def __init__(
        self, partitions: int, session_timeout: float, join_timeout: float, clock: Clock | None = None
    ) -> None:
        """Drop members that send no heartbeat for `session_timeout` seconds."""
        limits = {"partitions": partitions, "session_timeout": session_timeout, "join_timeout": join_timeout}
        for name, value in limits.items():
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} must be more than 0 and finite, not {value}")
        self.partitions = partitions
        self.session_timeout = session_timeout
        self.join_timeout = join_timeout
        self.generation = 0
        self.members: dict[str, Member] = {}  # by id, in the order of joining
        self._joined: set[str] = set()  # the ids of the members that have joined in this rebalance
        self._rebalance: Rebalance | None = None
        self._purgatory = DelayedOperationPurgatory("group", clock=clock)
        self._timer = self._purgatory.timer

    async def join(self, membership: Membership | None = None) -> Membership:
        """Join, or renew a membership. A join that is cancelled leaves the group.

        Raises `StaleMembership` and `PurgatoryClosed`.
        """
        member = Member(self) if membership is None else self._find(membership)
        self.members[member.id] = member
        self._joined.add(member.id)
        self._timer.cancel(member)
        try:
            generation = self.generation
            self._check_rebalance()
            # An operation of its own, so that a cancelled join cancels neither the rebalance nor another join.
            await self._purgatory.wait_for(lambda: self.generation > generation, "generation")
        except BaseException:
            self._drop(member)
            raise
        return self._find(member.membership).membership

    def heartbeat(self, membership: Membership) -> bool:
        """Move a member's deadline. Returns whether a rebalance is in progress, so that it must join again.

        Raises `StaleMembership` and `PurgatoryClosed`.
        """
        member = self._find(membership)
        if member.id not in self._joined:
            self._timer.reschedule_later(member, self.session_timeout)
        return self._rebalance is not None

    def leave(self, membership: Membership) -> None:
        """Leave the group. Raises `StaleMembership` and `PurgatoryClosed`."""
        self._drop(self._find(membership))

    async def aclose(self) -> None:
        """Close the group. Waiting joins and all later calls raise `PurgatoryClosed`."""
        await self._purgatory.aclose()

    def _find(self, membership: Membership) -> Member:
        if self._purgatory.closed:
            raise PurgatoryClosed("the group is closed")
        member = self.members.get(membership.member)
        if member is None:
            raise StaleMembership(f"member {membership.member} has left or was silent: join as a new one, with join()")
        if membership.generation != self.generation:
            raise StaleMembership(f"generation {membership.generation} is over, the group has {self.generation}")
        return member

    def _drop(self, member: Member) -> None:
        if self.members.pop(member.id, None) is not None and not self._purgatory.closed:
            self._joined.discard(member.id)
            self._timer.cancel(member)
            self._check_rebalance()

    def _check_rebalance(self) -> None:
        """Begin a rebalance, or complete the one in progress if all members have joined now."""
        if self._rebalance is not None:
            self._purgatory.check_and_complete("rebalance")
            return
        self._rebalance = Rebalance(self)
        try:
            self._purgatory.try_complete_else_watch(self._rebalance, ["rebalance"])
        except BaseException:  # for example, a call from another thread is refused
            self._rebalance = None
            raise

    def _begin_generation(self) -> None:
        for absent in self.members.keys() - self._joined:
            self._timer.cancel(self.members.pop(absent))
        self.generation += 1
        self._joined.clear()
        self._rebalance = None
        for index, member in enumerate(self.members.values()):
            member.membership = Membership(member.id, self.generation, range(index, self.partitions, len(self.members)))
            self._timer.reschedule_later(member, self.session_timeout)
        self._purgatory.check_and_complete("generation")


async def consume(name: str, group: ConsumerGroup, heartbeats: int) -> None:
    """Be a member for a number of heartbeats, and then fall silent."""
    membership: Membership | None = None
    for _ in range(heartbeats):
        try:
            if membership is None or group.heartbeat(membership):
                membership = await group.join(membership)
                print(f"{name}: generation {membership.generation}, partitions {list(membership.partitions)}")
        except StaleMembership:
            membership = None
        await asyncio.sleep(0.05)


async def main() -> None:
    group = ConsumerGroup(6, session_timeout=1.0, join_timeout=5.0)
    await asyncio.gather(consume("a", group, 10), consume("b", group, 40), consume("c", group, 80))
    await group.aclose()


if __name__ == "__main__":
    asyncio.run(main())
