"""Groups and their members."""

from collections.abc import Callable
from dataclasses import dataclass, field

from purgatory import DelayedOperation, DelayedOperationPurgatory


@dataclass(slots=True)
class Group:
    """A group: its members in the order of joining, each with the operation that waits for its silence."""

    generation: int = 0
    members: "dict[str, DelayedHeartbeat]" = field(default_factory=dict)


class DelayedHeartbeat(DelayedOperation[None]):
    """Waits for a member to be silent: a beat moves its deadline, and the deadline drops the member."""

    def __init__(self, groups: "Groups", group: str, member: str) -> None:
        super().__init__(groups.session_timeout)
        self.groups = groups
        self.group = group
        self.member = member

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        """Do nothing: no task awaits the operation."""

    def on_expiration(self) -> None:
        self.groups._remove(self.group, self.member, "silent")


class Groups:
    """The groups. `on_change(group, member, why)` is called when a member has joined, has left or is silent."""

    def __init__(
        self,
        purgatory: DelayedOperationPurgatory,
        session_timeout: float,
        on_change: Callable[[str, str, str], object] = lambda *_: None,
    ) -> None:
        """Drop members that are silent for `session_timeout` seconds."""
        self.session_timeout = session_timeout
        self._purgatory = purgatory
        self._on_change = on_change
        self._groups: dict[str, Group] = {}

    def __getitem__(self, group: str) -> Group:
        """The group; an unknown one has no members."""
        return self._groups.get(group, Group())

    def beat(self, group: str, member: str) -> Group:
        """Note a heartbeat of a member, which joins if it is new. Returns its group."""
        known = self._groups.setdefault(group, Group())
        heartbeat = known.members.get(member)
        if heartbeat is not None:
            heartbeat.reschedule(self.session_timeout)
            return known
        heartbeat = DelayedHeartbeat(self, group, member)
        known.members[member] = self._purgatory.try_complete_else_watch(heartbeat, [(group, member)])
        known.generation += 1
        self._on_change(group, member, "joined")
        return known

    def leave(self, group: str, member: str) -> None:
        """Remove a member. Harmless if it is none."""
        heartbeat = self[group].members.get(member)
        if heartbeat is not None and heartbeat.cancel():
            self._remove(group, member, "left")

    def _remove(self, group: str, member: str, why: str) -> None:
        known = self._groups[group]
        del known.members[member]
        known.generation += 1
        if not known.members:
            del self._groups[group]
        self._on_change(group, member, why)
