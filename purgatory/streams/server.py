"""uvicorn's server with a timeout for writing, and with workers that end with their supervisor."""

import gc
import logging
import math
import multiprocessing
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any, Final, TypeVar

import uvicorn
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from purgatory.streams.http.app import Application
from purgatory.streams.http.protocol import BoundedProtocol
from purgatory.streams.settings import Settings
from purgatory.streams.storage.database import StorageUnavailable
from purgatory.streams.storage.opener import PostgresOpener

S = TypeVar("S", bound=socket.socket)

STARTING: Final = 60.0
"""Seconds in which a worker starts."""
_FILES: Final = 1_200
"""Descriptors that are left for others than connections of clients: webhooks, the database, the log."""
_UNSENT: Final = 128 * 1024
"""Bytes of a response that the kernel holds for a client that does not take them, about."""

logger: Final = logging.getLogger("uvicorn.error")


def serve(
    settings: Settings, workers: int, host: str, port: int, reserved: socket.socket | None = None, **options: Any
) -> None:
    """Serve until SIGTERM or SIGINT. `options` are more of uvicorn's.

    `reserved` is a socket that is bound to the address already. Exits with 1 if the address is in use, or if a worker
    cannot start.
    """
    options["http"] = BoundedProtocol
    if workers == 1:
        if reserved is None:
            bound(host, port).close()  # before the application starts
        app = application(settings)
        server = Server(uvicorn.Config(app, host=host, port=port, **options), settings.write_timeout)
        server.run([reserved] if reserved is not None else None)
        return
    # One that does not answer for so long is replaced. On a busy machine, starting takes more than uvicorn's 5 seconds.
    options["timeout_worker_healthcheck"] = int(STARTING)
    config = uvicorn.Config(partial(worker, settings), factory=True, host=host, port=port, workers=workers, **options)
    supervisor = Supervisor(config, [OwnSocket.bound(host, port, settings.write_timeout)])
    if reserved is not None:
        reserved.close()
    supervisor.run()
    if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
        sys.exit(1)


def bound(host: str, port: int) -> socket.socket:
    """A socket that is bound to the address, and does not listen. Exits with a message if nothing can listen there."""
    return _bound(socket.socket, host, port)


def _bound(kind: type[S], host: str, port: int) -> S:
    found = kind(socket.AF_INET6 if ":" in host else socket.AF_INET)
    _separate(found)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        sys.exit(f"cannot listen on {host}:{port}: {error.strerror}")
    return found


def application(settings: Settings) -> Application:
    """Return the application of a process that serves nothing else."""
    BoundedProtocol.write_timeout = settings.write_timeout
    BoundedProtocol.cool_after = settings.cool_after
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    BoundedProtocol.most_connections = max(files - _FILES, files // 2)
    app = Application(settings, [Connections()])
    BoundedProtocol.memory = app.limits.memory
    # Collect garbage rarely. With the default thresholds every burst of requests rescans all live responses, which
    # takes a third of the CPU with 512 writers.
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 50)
    # The writing thread releases the interpreter at each statement, and then waits so long for it if the loop is busy.
    # With the default of 5 ms, an append took 0.4 s while 32 clients opened event streams.
    sys.setswitchinterval(0.0002)
    return app


class Connections(Collector):
    """Collects how many connections were refused."""

    def collect(self) -> Iterator[Metric]:
        """The figure as it is now, called by the registry."""
        text = "Connections that were refused because the process has as many as it may"
        yield CounterMetricFamily("purgatory_connections_refused", text, value=BoundedProtocol.refused)


def worker(settings: Settings) -> Application:
    """The application of one worker."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=[parent], daemon=True).start()
    assert settings.database is not None
    _wait_for(settings.database)
    return application(replace(settings, instance=f"{settings.instance}-{os.getpid()}"))


def _wait_for(database: str) -> None:
    # uvicorn ends all workers if one cannot start. One that takes the place of another waits for the database instead.
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGINT)}
    while True:
        try:
            PostgresOpener(database).close()
            break
        except StorageUnavailable as failure:
            logger.warning("a worker cannot start yet: %s", failure)
            time.sleep(1)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _end_with(parent: BaseProcess) -> None:
    # A worker without its supervisor would not be ended or replaced.
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


class Server(uvicorn.Server):
    """uvicorn's server, which disconnects a client that does not read. Such a client costs the kernel little meanwhile.

    Else it keeps its connection forever, with up to four MiB of its response in the kernel (`net.ipv4.tcp_wmem`).
    """

    def __init__(self, config: uvicorn.Config, write_timeout: float) -> None:
        """Disconnect a client that takes nothing of its response for `write_timeout` seconds."""
        super().__init__(config)
        self.write_timeout = write_timeout

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if sockets:  # of which uvicorn says nothing
            _log_address(sockets[0])
        for server in self.servers:
            for listening in server.sockets:
                set_write_timeout(listening, self.write_timeout)


def set_write_timeout(listening: socket.SocketType, seconds: float) -> None:
    """Set the write timeout of all connections that `listening` accepts. uvicorn has no such timeout."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux has it
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, math.ceil(1000 * seconds))
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # and so has macOS
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)


class Supervisor(Multiprocess):
    """uvicorn's supervisor, which says where it listens when all of its workers do."""

    def init_processes(self) -> None:
        super().init_processes()
        if all(process.wait_until_ready(STARTING, self.should_exit) for process in self.processes):
            _log_address(self.sockets[0], f" with {len(self.processes)} workers")


def _log_address(listening: socket.socket, more: str = "") -> None:
    host, port = listening.getsockname()[:2]
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    logger.info("Uvicorn running on http://%s%s (Press CTRL+C to quit)", at, more)


class OwnSocket(socket.socket):
    """A socket of which each worker gets another one, bound to the same address (`SO_REUSEPORT`).

    The kernel then spreads connections evenly, by a hash of both addresses. On a socket that is shared, the worker that
    wakes up first takes whatever is there: of a thousand connections, one of four got 44 and another 478.
    """

    write_timeout: float

    @classmethod
    def bound(cls, host: str, port: int, write_timeout: float) -> "OwnSocket":
        """A socket in the supervisor, which holds the address and takes no connections. Exits if it is in use."""
        own = _bound(cls, host, port)
        own.write_timeout = write_timeout
        # From now on another server that starts cannot listen there, although this socket does not listen.
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        # Not before: a server that is there already would not be noticed.
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return own

    def __reduce__(self) -> Any:
        return _bind, (self.family, self.getsockname(), self.write_timeout)


def _separate(own: socket.socket) -> None:
    # As with one process: else IPv4's addresses would come as IPv6's, also the one of a proxy that is believed.
    if own.family == socket.AF_INET6:
        own.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)


def _bind(family: int, address: Any, write_timeout: float) -> socket.socket:
    """The socket of one worker, made in its process."""
    own = socket.socket(family)
    _separate(own)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    own.bind(address)
    set_write_timeout(own, write_timeout)
    return own
