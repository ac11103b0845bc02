"""The state that the connections of a server share."""

import asyncio
import logging
import math
import socket
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, Final

from purgatory import WheelTimer
from purgatory.connections import QuietConnections
from purgatory.connections.transport import can_replace
from purgatory.uvicorn.names import Config, ServerState

logger: Final = logging.getLogger("uvicorn.error")

_AT_ONCE: Final = 16
"""The most quiet connections that begin with a request in one iteration."""


class Shared:
    """The state that the connections of a server share."""

    def __init__(
        self,
        protocol_class: Any,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
    ) -> None:
        self.protocol_class: Any = protocol_class
        """The class of connections that are not quiet: `ParkingProtocol`, which is above this module, or a subclass."""
        self.config: Config = config
        self.server_state: ServerState = server_state
        self.app_state: dict[str, Any] = app_state
        access_logger = logging.getLogger("uvicorn.access")
        self.access_logger: logging.Logger | None = access_logger if access_logger.hasHandlers() else None
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.cool_after: float | None = None
        """Seconds after which a quiet connection rests. With `None`, it keeps its transport."""
        if protocol_class.cool_after < math.inf and sys.platform != "win32":  # which cannot watch descriptors
            self.cool_after = max(protocol_class.cool_after, 0.001)
        self.quiet: QuietConnections = QuietConnections(rest_after=self.cool_after or 3.0)
        """The quiet connections."""
        self.timer: WheelTimer = WheelTimer(tick=0.02, wheel_size=256)
        """The timer for idle connections, keep-alive, and clients that don't read."""
        self.is_able: bool | None = None
        """Whether another protocol can take over a connection on this event loop, or `None` before the first one."""
        self.probes: list[tuple[int, int, int]] = probes(protocol_class.tcp_keep_alive)
        """The options of sockets for TCP's keep-alive."""
        self._begun: int = 0
        """The connections that have begun with a request in this iteration."""
        self._due: deque[Callable[[], object]] = deque()
        """Those that begin in one of the next iterations."""
        self.is_stopping: bool = False
        """Whether the server shuts down."""
        self.context: Context = copy_context()
        """The server's own context, for requests that begin at the end of another one."""

    def begin(self, begin: Callable[[], object]) -> None:
        """Let a connection handle the data that it holds, now or in one of the next iterations.

        If thousands of requests began in the same iteration, thousands of parsers and tasks would be there at once.
        """
        self._due.append(begin)
        if self._begun < _AT_ONCE:
            if not self._begun:
                self.loop.call_soon(self._begin_next, context=self.context)
            self._begin_one()

    def _begin_one(self) -> None:
        self._begun += 1
        self._due.popleft()()

    def _begin_next(self) -> None:
        self._begun = 0
        if self._due:
            self.loop.call_soon(self._begin_next, context=self.context)
        while self._due and self._begun < _AT_ONCE:
            self._begin_one()

    def keep_alive(self, transport: asyncio.Transport) -> None:
        """Let the system find out when the client of a new connection has vanished silently."""
        if not self.probes:
            return
        own = transport.get_extra_info("socket")
        if own is None or own.family not in (socket.AF_INET, socket.AF_INET6):
            return
        # On uvloop, each call of `own` itself would create a socket.
        connection = socket.socket(own.family, own.type, own.proto, own.fileno())
        with suppress(OSError):  # the client has left already, on macOS
            for level, option, value in self.probes:
                connection.setsockopt(level, option, value)
        connection.detach()

    def can_replace(self, transport: asyncio.Transport) -> bool:
        """Return whether another protocol can take over a connection. Log once if the event loop doesn't allow it."""
        if self.is_able is None:
            self.is_able = can_replace(transport)
            if not self.is_able:
                logger.warning("%s", unable(self.loop))
        return self.is_able


def probes(seconds: float) -> list[tuple[int, int, int]]:
    """Return the options of a socket that is probed after so many seconds: three times in half of that again."""
    if seconds == math.inf:
        return []
    idle = min(max(round(seconds), 1), 32767)  # the most that Linux takes
    numbers = {"TCP_KEEPIDLE": idle, "TCP_KEEPALIVE": idle, "TCP_KEEPINTVL": max(idle // 6, 1), "TCP_KEEPCNT": 3}
    tcp = [(socket.IPPROTO_TCP, getattr(socket, name), numbers[name]) for name in numbers if hasattr(socket, name)]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *tcp]  # macOS has another name for the first


def unable(loop: asyncio.AbstractEventLoop) -> str:
    """Say that nothing is parked on `loop`."""
    kind = type(loop)
    return (
        f"requests that wait are not parked, and keep their tasks, because the event loop {kind.__module__}."
        f"{kind.__qualname__} can't replace the protocol of a connection: use uvloop or asyncio's own"
    )
