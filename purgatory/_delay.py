"""A delay: an operation that only waits."""

from purgatory._core.operation import DelayedOperation
from purgatory._loop.arguments import seconds as check_seconds


class Delay(DelayedOperation[None]):
    """Completes when its time is up, and no check completes it earlier.

    It needs neither a task nor an entry in the event loop's heap. A close of the purgatory ends it early.

        # Throttle a client that exceeds its quota.
        await purgatory.try_complete_else_watch(Delay(2.0), [client])

        purgatory.cancel_for_key(client)  # elsewhere: the client has disconnected
    """

    __slots__ = ("__weakref__",)

    def __init__(self, seconds: float) -> None:
        """Make a delay of `seconds`, which must be finite and not negative. Raises as `DelayedOperation`."""
        super().__init__(check_seconds("seconds", seconds))

    def try_complete(self) -> bool:
        """Return `False`, because only the deadline completes a delay."""
        return False

    def on_complete(self) -> None:
        """Return `None`, because a delay has no result."""
