"""A delay: an operation that only waits."""

from purgatory._core.operation import DelayedOperation
from purgatory._loop.arguments import seconds as check_seconds

__all__ = ["Delay"]


class Delay(DelayedOperation[None]):
    """Completes when its time is over, and not by a check: for instance to throttle a client that is over its quota.

    It costs as much as any operation: it needs neither a task nor an entry in the loop's heap. When the client goes,
    `cancel_for_key` cancels it. A close, which completes every pending operation, ends it early.
    """

    __slots__ = ("__weakref__",)

    def __init__(self, seconds: float) -> None:
        """Wait for `seconds`. Raises as `DelayedOperation`; a delay has an end, so `None` is a `TypeError`."""
        super().__init__(check_seconds("seconds", seconds))

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        """Do nothing."""
