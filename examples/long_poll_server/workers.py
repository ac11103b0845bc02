"""Several processes that serve the same port.

uvicorn's supervisor starts them, starts another when one has died, and ends them with itself. Each has a name of its
own, which its answers carry as `X-Instance`: that of the server and its process id.
"""

import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any, Final

import uvicorn
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from examples.long_poll_server import collector
from examples.long_poll_server.app import LongPollServer
from examples.long_poll_server.settings import Settings
from examples.long_poll_server.write_timeout import set_write_timeout

STARTING: Final = 60.0
"""Seconds in which a worker starts."""

_log = logging.getLogger("uvicorn.error")


def serve(settings: Settings, workers: int, host: str, port: int, **options: Any) -> None:
    """Serve with so many workers until SIGTERM or SIGINT. `options` are more of uvicorn's.

    Exits with 1 if the address is in use, or if a worker cannot start.
    """
    config = uvicorn.Config(
        partial(application, settings), factory=True, host=host, port=port, workers=workers, **options
    )
    supervisor = Supervisor(config, [OwnSocket.bound(host, port, settings.write_timeout)])
    supervisor.run()
    if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
        sys.exit(1)


def application(settings: Settings) -> ASGIApp:
    """The application of one worker."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=[parent], daemon=True).start()
    settings = replace(settings, instance=f"{settings.instance}-{os.getpid()}")
    app = LongPollServer(settings, settings.open_journal()).app
    collector.tune()
    return Named(app, settings.instance)


def _end_with(parent: BaseProcess) -> None:
    # A worker without its supervisor would not be ended or replaced.
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


class Named:
    """Puts the name of the process into each answer."""

    def __init__(self, app: ASGIApp, name: str) -> None:
        self.app = app
        self.name = name

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Not a coroutine function: what waits has no use for a frame more."""

        def send_named(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Instance"] = self.name
            return send(message)

        return self.app(scope, receive, send_named)


class Supervisor(Multiprocess):
    """uvicorn's, but it says where it listens when all of its workers do."""

    def init_processes(self) -> None:
        super().init_processes()
        if all(process.wait_until_ready(STARTING, self.should_exit) for process in self.processes):
            host, port = self.sockets[0].getsockname()[:2]
            at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            _log.info("Uvicorn running on http://%s with %d workers (Press CTRL+C to quit)", at, len(self.processes))


class OwnSocket(socket.socket):
    """A socket of which each worker gets another one, bound to the same address (`SO_REUSEPORT`).

    The kernel then spreads connections evenly, by a hash of both addresses. On a socket that is shared, the worker that
    wakes up first takes whatever is there: of a thousand connections, one of four got 44 and another 478.
    """

    write_timeout: float

    @classmethod
    def bound(cls, host: str, port: int, write_timeout: float) -> "OwnSocket":
        """A socket in the supervisor, which holds the address and takes no connections. Exits if it is in use."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        own = cls(family)
        own.write_timeout = write_timeout
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            own.bind((host, port))
        except OSError as error:
            sys.exit(f"cannot listen on {host}:{port}: {error.strerror}")
        # Not before: a server that is there already would not be noticed.
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return own

    def __reduce__(self) -> Any:
        return _bind, (self.family, self.getsockname(), self.write_timeout)


def _bind(family: int, address: Any, write_timeout: float) -> socket.socket:
    """In the worker."""
    own = socket.socket(family)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    own.bind(address)
    set_write_timeout(own, write_timeout)
    return own
