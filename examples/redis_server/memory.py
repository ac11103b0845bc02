"""The memory of a client that blocks: in Redis, in the server of this folder, and in the same one with tasks.

python -m examples.redis_server.memory
"""

import argparse
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

import psutil
from rich.console import Console
from rich.progress import track
from rich.table import Table

BLOCK = b"*3\r\n$5\r\nBLPOP\r\n$4\r\njobs\r\n$1\r\n0\r\n"
PING, PONG = b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def connected(port: int, server: "subprocess.Popen[bytes]") -> socket.socket:
    """Connect to a server that starts."""
    while server.poll() is None:
        try:
            return socket.create_connection(("127.0.0.1", port), 60.0)
        except ConnectionRefusedError:
            time.sleep(0.05)
    sys.exit("a server has ended")


def kibibytes(name: str, command: Sequence[str], count: int, seconds: float) -> float:
    """Start a server, let clients block, and return what each of them takes some seconds later."""
    port = free_port()
    with subprocess.Popen([*command, str(port)], stdout=subprocess.DEVNULL) as server:
        try:
            with connected(port, server) as first:
                first.sendall(PING)
                assert first.recv(100) == PONG
                process = psutil.Process(server.pid)
                before: int = process.memory_info().rss
                clients = []
                for number in track(range(1, count + 1), name):
                    clients.append(connected(port, server))
                    clients[-1].sendall(BLOCK)
                    if number % 500 == 0:
                        time.sleep(0.05)
                time.sleep(seconds)
                used: int = process.memory_info().rss - before
                first.sendall(PING)
                assert first.recv(100) == PONG
                for client in clients:
                    client.close()
                return used / count / 1024
        finally:
            server.kill()


def main(count: int, seconds: float) -> None:
    """Compare the servers, and print a table."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    servers = {
        "this one": [sys.executable, "-m", "examples.redis_server.server"],
        "the same with a task for each client": [sys.executable, "-m", "examples.redis_server.with_tasks"],
    }
    redis = shutil.which("redis-server")
    if redis is None:
        sys.exit("install redis-server, for example by apt-get install redis-server")
    servers["Redis itself"] = [redis, "--save", "", "--maxclients", str(count + 100), "--port"]
    table = Table("server", "memory of a blocked client", title=f"{count:,} clients in BLPOP")
    for name, command in servers.items():
        table.add_row(name, f"{kibibytes(name, command, count, seconds):.2f} KiB")
    Console().print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long they have been blocked")
    options = parser.parse_args()
    main(options.clients, options.seconds)
