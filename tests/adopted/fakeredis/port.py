"""The blocking commands of fakeredis, as operations: `install()` puts them in the place of its own.

`BLPOP a b 5` is one operation that waits on the keys `a` and `b` for five seconds. fakeredis has a task for it, with an
`asyncio.Event` under a timeout, and a callback that each change of any key of the database calls. As a plugin of
pytest, this module runs fakeredis' own tests so: `pytest -p port`.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from fakeredis._core._database import Database
from fakeredis._helpers import NoResponse, SimpleError
from fakeredis._socket._async import AsyncFakeSocket

from purgatory import DelayedOperation, DelayedOperationPurgatory

UNBLOCK: Final = object()
"""The key of `CLIENT UNBLOCK`, on which all commands wait."""

Loops = WeakKeyDictionary[asyncio.AbstractEventLoop, DelayedOperationPurgatory]
_waiting: Final[WeakKeyDictionary[Database, Loops]] = WeakKeyDictionary()


class BlockedCommand(DelayedOperation[None]):
    """A command that waits for one of its keys."""

    def __init__(self, socket: Any, timeout: float | None, read: Callable[[bool], Any], shape: Any) -> None:
        super().__init__(timeout or None)  # Redis waits for ever if it is zero
        self.socket = socket
        self.read = read
        self.shape = shape or (lambda reply: reply)
        self.reply: Any = None
        self.blocks = False
        """Whether the command that blocks has returned, and with it the server's lock."""

    def try_complete(self) -> bool:
        if not self.blocks:
            return False
        with self.socket._server.lock:
            if self.socket._unblock_reason is not None:
                return self.unblocked()
            found = self.read(False)
            if found is None:
                return False
            self.reply = self.shape(found)
        return self.force_complete()

    def unblocked(self) -> bool:
        """`CLIENT UNBLOCK`: the reply is empty, or an error."""
        try:
            self.socket._take_unblock_reason()
            self.reply = self.shape(None)
        except SimpleError as error:
            self.reply = error
        return self.force_complete()

    def on_complete(self) -> None:
        """The reply is there, unless the time is over."""

    def on_expiration(self) -> None:
        with self.socket._server.lock:
            self.reply = self.shape(None)

    def on_done(self) -> None:
        self.socket._blocked = False
        self.socket._unblock_reason = None
        self.socket.put_response(self.socket._decode_result(self.reply))
        self.socket.resume()


def block(socket: Any, timeout: float | None, read: Callable[[bool], Any], shape: Any = None) -> Any:
    """`AsyncFakeSocket._blocking`."""
    keys = _Recorded.keys = dict.fromkeys([UNBLOCK])
    try:
        found = read(True)
    finally:
        _Recorded.keys = None
    if found is not None or socket._in_transaction:
        return found if shape is None else shape(found)
    loops = _waiting.setdefault(socket._db, WeakKeyDictionary())
    purgatory = loops.setdefault(asyncio.get_running_loop(), DelayedOperationPurgatory("blocked"))
    socket._blocked = True
    socket.pause()
    _Recorded.blocked += 1
    purgatory.try_complete_else_watch(BlockedCommand(socket, timeout, read, shape), keys).blocks = True
    return NoResponse()


class _Recorded:
    """The keys that a command looks at in its first try: these are what it waits for."""

    keys: dict[Any, None] | None = None
    blocked = 0
    """How many commands have waited."""

    @staticmethod
    def get(database: Database, key: bytes, own: Callable[..., Any] = Database.__getitem__) -> Any:
        if _Recorded.keys is not None:
            _Recorded.keys[key] = None
        return own(database, key)


def notify_watch(database: Database, key: bytes, wake_all: Callable[..., None] = Database.wake_all) -> None:
    """`Database.notify_watch`: tries the commands that wait for `key`, in another iteration of their loops."""
    for socket in database._watches.get(key, ()):
        socket.notify_watch()
    wake_all(database)  # its own, for clients in threads
    _check(database, key)


def wake_all(database: Database, own: Callable[..., Any] = Database.wake_all) -> None:
    """`Database.wake_all`, which `CLIENT UNBLOCK` calls."""
    own(database)
    _check(database, UNBLOCK)


def _check(database: Database, key: object) -> None:
    for loop, purgatory in list(_waiting.get(database, {}).items()):
        if purgatory.is_watched(key) and not loop.is_closed():
            # In one iteration: a write amid a check in slices would serve whoever is in the middle.
            loop.call_soon_threadsafe(purgatory.check_and_complete, key)


def install() -> None:
    """Let fakeredis wait by operations from now on."""
    AsyncFakeSocket._blocking = block  # type: ignore[method-assign, assignment]
    Database.__getitem__ = _Recorded.get  # type: ignore[method-assign]
    Database.notify_watch = notify_watch  # type: ignore[method-assign, assignment]
    Database.wake_all = wake_all  # type: ignore[method-assign, assignment]


def pytest_configure() -> None:
    install()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(f"commands that blocked as operations: {_Recorded.blocked}")
