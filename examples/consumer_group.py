"""A consumer group in one file, to be copied, after Kafka's group coordinator. `examples/README.md` has a guide.

When a member joins, leaves or is silent, a rebalance begins: heartbeats return `True`; the others join again. A join
waits until all have, or for `join_timeout`, which drops the rest. Then a generation begins, with new shares.
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
    """A member. It is in the timer while it has to send heartbeats, and not while its join waits."""

    def __init__(self, group: "ConsumerGroup") -> None:
        super().__init__()
        self.group, self.id = group, str(uuid4())
        self.membership = Membership(self.id, group.generation, range(0))

    def run(self) -> None:
        self.group._drop(self)  # it was silent


class Rebalance(DelayedOperation[None]):
    """Kafka's DelayedJoin: all joins wait for this one operation, and it for the members that have not joined yet."""

    def __init__(self, group: "ConsumerGroup") -> None:
        super().__init__(group.join_timeout)
        self.group = group

    def try_complete(self) -> bool:
        return len(self.group._joined) == len(self.group.members) and self.force_complete()

    def on_complete(self) -> None:
        self.group._begin_generation()

    def cancel(self) -> bool:
        return False  # when the last task that awaits it is cancelled, others are still to join


class ConsumerGroup:
    """The members of a group, which share the partitions from 0 on."""

    def __init__(
        self, partitions: int, session_timeout: float, join_timeout: float, clock: Clock | None = None
    ) -> None:
        """Drop members that send no heartbeat for `session_timeout` seconds."""
        self.partitions, self.session_timeout, self.join_timeout = partitions, session_timeout, join_timeout
        for name in ("partitions", "session_timeout", "join_timeout"):
            if not 0 < (value := getattr(self, name)) < float("inf"):
                raise ValueError(f"{name} must be more than 0 and finite, not {value}")
        self.generation = 0
        self.members: dict[str, Member] = {}  # by id, in the order of joining
        self._joined: set[str] = set()  # the ids of the members that have joined in this rebalance
        self._rebalance: Rebalance | None = None
        self._purgatory = DelayedOperationPurgatory("group", clock=clock)
        self._timer = self._purgatory.timer

    async def join(self, membership: Membership | None = None) -> Membership:
        """Join, or renew a membership. To cancel it is to leave. Raises `StaleMembership` and `PurgatoryClosed`."""
        member = Member(self) if membership is None else self._find(membership)
        self.members[member.id] = member
        self._joined.add(member.id)
        self._timer.cancel(member)
        try:
            await self._check_rebalance()
        except BaseException:  # cancelled while it waits, or in the moment in which the generation begins
            self._drop(member)
            raise
        return self._find(member.membership).membership

    def heartbeat(self, membership: Membership) -> bool:
        """Move a member's deadline. Returns whether a rebalance is in progress: join again then. Raises as `join`."""
        if (member := self._find(membership)).id not in self._joined:
            self._timer.reschedule(member, self._timer.time() + self.session_timeout)
        return self._rebalance is not None

    def leave(self, membership: Membership) -> None:
        """Leave. Raises as `join`."""
        self._drop(self._find(membership))

    async def aclose(self) -> None:
        """Let waiting joins and all later calls raise `PurgatoryClosed`."""
        await self._purgatory.aclose()

    def _find(self, membership: Membership) -> Member:
        if self._purgatory.closed:
            raise PurgatoryClosed("the group is closed")
        if (member := self.members.get(membership.member)) is None:
            raise StaleMembership(f"member {membership.member} has left or was silent: join as a new one, with join()")
        if membership.generation != self.generation:
            raise StaleMembership(f"generation {membership.generation} is over, the group has {self.generation}")
        return member

    def _drop(self, member: Member) -> None:
        if self.members.pop(member.id, None) is not None and not self._purgatory.closed:
            self._joined.discard(member.id)
            self._timer.cancel(member)
            self._check_rebalance()

    def _check_rebalance(self) -> Rebalance:
        if (rebalance := self._rebalance) is not None:
            self._purgatory.check_and_complete("rebalance")
            return rebalance
        self._rebalance = rebalance = Rebalance(self)
        try:
            return self._purgatory.try_complete_else_watch(rebalance, ["rebalance"])
        except BaseException:  # from another thread, for one
            self._rebalance = None
            raise

    def _begin_generation(self) -> None:
        for absent in self.members.keys() - self._joined:
            self._timer.cancel(self.members.pop(absent))
        self.generation, self._joined, self._rebalance = self.generation + 1, set(), None
        for index, member in enumerate(self.members.values()):
            member.membership = Membership(member.id, self.generation, range(index, self.partitions, len(self.members)))
            self._timer.reschedule(member, self._timer.time() + self.session_timeout)


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
