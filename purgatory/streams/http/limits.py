"""Limits of time and size that requests share."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from ipaddress import ip_address
from sys import intern
from typing import Final

from starlette.types import Scope

from purgatory.streams.http.replies import RETRY, Refusal

__all__ = ["Held", "address", "jittered"]

_JITTER: Final = 1 / 16
_SHORT: Final = 1.0


def address(scope: Scope) -> str:
    """The address of a client, or "" if a proxy has given something else: an invented text is no client."""
    return _address((scope.get("client") or ("", 0))[0])


@lru_cache(1024)
def _address(host: str) -> str:
    try:
        return intern(str(ip_address(host.partition("%")[0])))  # also the zone may be anything
    except ValueError:
        return ""


def jittered(seconds: float, draw: Callable[[], float] = random.random) -> float:
    """A little less than `seconds`, so that readers that began to wait at once do not come back at once.

    It is less by up to a sixteenth, as with Consul's blocking queries. A time below a second stays as it is.
    """
    return seconds if seconds < _SHORT else seconds * (1 - _JITTER * draw())


class Held:
    """The bytes that all requests together hold in memory."""

    def __init__(self, most: int, error: str) -> None:
        """Refuse more than `most` bytes, with this error."""
        self._most = most
        self._error = error
        self.bytes = 0

    @contextmanager
    def some(self) -> Iterator[Callable[[int], None]]:
        """Yields `hold(size)`, which counts `size` bytes for one request until the context ends.

        `hold` raises `Refusal` if they are too many together, and counts none of them then.
        """
        mine = 0

        def hold(size: int) -> None:
            nonlocal mine
            if self.bytes - mine + size > self._most:
                raise Refusal(503, self._error, [RETRY])
            self.bytes += size - mine
            mine = size

        try:
            yield hold
        finally:
            self.bytes -= mine
