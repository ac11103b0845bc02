"""What a connection takes while it rests, and what it costs to wake it: `python -m tests.connections.measure`.

Clients connect to a server in batches of 500 and send five bytes each. Its memory is resident, some seconds later.
"""

import argparse
import asyncio
import gc
import socket
import subprocess
import sys
import time
from typing import Any, Final

import psutil
import uvloop

from purgatory.connections import QuietConnections
from tests.support.paths import ROOT

BACKLOG: Final = 4096
AT_ONCE: Final = 500
SECONDS: Final = 3.0
"""Seconds after which a connection rests."""
ASKED: Final = 200
"""Connections that are asked, while they rest and while they don't."""


class Five(asyncio.Protocol):
    """A protocol of five slots."""

    __slots__ = ("a", "b", "c", "d", "transport")

    connections: QuietConnections | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport if self.connections is None else self.connections.add(transport)
        self.a = self.b = self.c = self.d = None
        self.rest()

    def rest(self) -> None:
        if self.connections is not None:
            self.transport.rest(SECONDS)

    def data_received(self, data: bytes) -> None:
        answer = data
        if data == b"rss":
            gc.collect()
            answer = b"%d" % psutil.Process().memory_info().rss
        elif data == b"cpu":
            answer = b"%d" % (time.process_time() * 1e9)
        self.transport.write(answer)
        self.rest()


async def serve(kind: str) -> None:
    if kind == "quiet":
        Five.connections = QuietConnections(rest_after=SECONDS)
    server = await asyncio.get_running_loop().create_server(Five, "127.0.0.1", 0, backlog=BACKLOG)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201
    await server.serve_forever()


def measure(kind: str, loop: str, count: int, seconds: float) -> tuple[float, float]:
    """The KiB of each of `count` connections so many seconds later, and the CPU of a message in microseconds then."""
    command = [sys.executable, "-m", "tests.connections.measure", "--serve", kind, "--loop", loop]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = ("127.0.0.1", int(server.stdout.readline()))
            asking = socket.create_connection(address, 60)

            def ask(what: bytes) -> int:
                asking.sendall(what)
                return int(asking.recv(100))

            ask(b"rss")
            time.sleep(0.5)
            before = ask(b"rss")
            clients = []
            for number in range(1, count + 1):
                clients.append(socket.create_connection(address, 60))
                if number % AT_ONCE == 0:
                    time.sleep(0.05)
            for client in clients:
                client.sendall(b"hello")
                assert client.recv(10) == b"hello"
            time.sleep(seconds)
            used = ask(b"rss") - before
            began = ask(b"cpu")
            for client in clients[:ASKED]:
                client.sendall(b"hello")
                assert client.recv(10) == b"hello"
            cpu = ask(b"cpu") - began
            for client in clients:
                client.close()
            asking.close()
            return used / count / 1024, cpu / 1000 / min(ASKED, count)
        finally:
            server.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", choices=["quiet", "plain"])
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    options = parser.parse_args()
    if options.serve:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if options.loop == "uvloop" else None) as runner:
            runner.run(serve(options.serve))
    for loop in ("uvloop", "asyncio"):
        for kind in ("quiet", "plain"):
            memory, cpu = measure(kind, loop, 10_000, 20.0)
            print(f"{loop}, {kind}: {memory:.2f} KiB, {cpu:.0f} us of CPU for a message and its answer")  # noqa: T201
