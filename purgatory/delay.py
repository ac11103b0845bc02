"""A delay: an operation that only waits."""

from purgatory._checks import seconds as check_seconds
from purgatory.operation import DelayedOperation

__all__ = ["Delay"]


class Delay(DelayedOperation[None]):
    """Completes when its time is over, and by nothing else: for instance to throttle a client that is over its quota.

    It costs what any operation costs, so neither a task nor an entry in the loop's heap, and is cancelled with
    everything else on its key when the client goes. A close, which completes every pending operation, ends it early.
    """

    __slots__ = ("__weakref__",)

    def __init__(self, seconds: float) -> None:
        """Wait for `seconds`. Raises as `DelayedOperation`; a delay has an end, so `None` is a `TypeError`."""
        super().__init__(check_seconds("seconds", seconds))

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        """There is nothing to do."""
