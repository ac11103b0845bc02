"""Keys that wait to be published or checked, in bounded memory."""

import asyncio
from collections.abc import Iterable, Sequence


class Backlog:
    """Distinct keys, in the order of arrival. More than `max_keys` of them collapse to *everything*."""

    __slots__ = ("_keys", "_max_keys", "everything", "waiting")

    def __init__(self, max_keys: int) -> None:
        self._max_keys = max_keys
        self._keys: dict[str, None] = {}
        self.everything: bool = False
        """Whether the keys have collapsed."""
        self.waiting: asyncio.Event = asyncio.Event()
        """Set while the backlog is not empty."""

    def __len__(self) -> int:
        """Return the number of keys. Everything counts as one."""
        return 1 if self.everything else len(self._keys)

    def __contains__(self, key: object) -> bool:
        """Return whether `key` waits. Everything contains no single key."""
        return key in self._keys

    def add(self, keys: Iterable[str] | None) -> None:
        """Add keys. `None` means everything."""
        if keys is None:
            self.everything = True
        elif not self.everything:
            self._keys.update(dict.fromkeys(keys))
            self.everything = len(self._keys) > self._max_keys
        if self.everything:
            self._keys.clear()
        if len(self):
            self.waiting.set()

    def take(self) -> Sequence[str] | None:
        """Take out all keys. `None` means everything."""
        keys = None if self.everything else list(self._keys)
        self._keys.clear()
        self.everything = False
        self.waiting.clear()
        return keys
