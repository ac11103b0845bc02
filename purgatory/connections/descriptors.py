"""Sets of descriptors that the system watches, behind one descriptor."""

import select
from collections.abc import Callable
from typing import Any, Final

_AT_ONCE: Final = 16
"""The most descriptors that are handled in one iteration of the loop."""


class Epoll:
    """Descriptors, and the ones that can be read or have hung up."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.fileno: Callable[[], int] = self._epoll.fileno
        self.remove: Callable[[int], None] = self._epoll.unregister
        self.close: Callable[[], None] = self._epoll.close

    def add(self, descriptor: int) -> None:
        self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLRDHUP)

    def ready(self) -> list[int]:
        return [descriptor for descriptor, _ in self._epoll.poll(0, _AT_ONCE)]


class Kqueue:
    """The same, on macOS and the BSDs."""

    def __init__(self) -> None:
        self._select: Any = select  # mypy knows the types of its own platform
        self._kqueue = self._select.kqueue()
        self.fileno: Callable[[], int] = self._kqueue.fileno
        self.close: Callable[[], None] = self._kqueue.close

    def add(self, descriptor: int) -> None:
        self._change(descriptor, self._select.KQ_EV_ADD)

    def remove(self, descriptor: int) -> None:
        self._change(descriptor, self._select.KQ_EV_DELETE)

    def ready(self) -> list[int]:
        return [event.ident for event in self._kqueue.control(None, _AT_ONCE, 0)]

    def _change(self, descriptor: int, how: int) -> None:
        self._kqueue.control([self._select.kevent(descriptor, self._select.KQ_FILTER_READ, how)], 0)


def descriptors() -> Epoll | Kqueue:
    """Return an empty set. Raise `NotImplementedError` on Windows, and `OSError` if no descriptor is left."""
    if hasattr(select, "epoll"):
        return Epoll()
    if hasattr(select, "kqueue"):
        return Kqueue()
    raise NotImplementedError
