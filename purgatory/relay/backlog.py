"""Keys that wait for something to be done about them, in bounded memory."""

import asyncio
from collections.abc import Iterable, Sequence

__all__ = ["Backlog"]


class Backlog:
    """Distinct keys, in the order in which they came. More than `max_keys` of them collapse to *everything*."""

    __slots__ = ("_everything", "_keys", "_max_keys", "waiting")

    def __init__(self, max_keys: int) -> None:
        self._max_keys = max_keys
        self._keys: dict[str, None] = {}
        self._everything = False
        self.waiting = asyncio.Event()
        """Set while there is something to take."""

    def __len__(self) -> int:
        """How many keys wait; everything counts as one."""
        return 1 if self._everything else len(self._keys)

    def __contains__(self, key: object) -> bool:
        """Whether `key` waits by its name."""
        return key in self._keys

    def add(self, keys: Iterable[str] | None) -> None:
        """Add keys; `None` is everything."""
        if keys is None:
            self._everything = True
        elif not self._everything:
            self._keys.update(dict.fromkeys(keys))
            self._everything = len(self._keys) > self._max_keys
        if self._everything:
            self._keys.clear()
        if len(self):
            self.waiting.set()

    def take(self) -> Sequence[str] | None:
        """Take out all of them; `None` is everything."""
        keys = None if self._everything else list(self._keys)
        self._keys.clear()
        self._everything = False
        self.waiting.clear()
        return keys
