"""Clients without manners, on plain sockets: they leave in the middle, read nothing, or are killed."""

import asyncio
import random
import signal
import socket
import struct
import sys
from contextlib import suppress
from urllib.parse import urlsplit

from examples.long_poll_server.load.server import ROOT

WAYS = ("close", "reset", "half-close", "in the head", "in the body")
"""In which a client leaves."""

KILLED = 50
"""Connections of a process that is killed."""


def request(path: str) -> bytes:
    """A GET of it."""
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def reset(connection: socket.socket) -> None:
    """Close it with a RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


async def connect(url: str, receive_buffer: int | None = None) -> socket.socket:
    """A connection to the server."""
    parts = urlsplit(url)
    connection = socket.socket()
    connection.setblocking(False)
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    try:
        await asyncio.get_running_loop().sock_connect(connection, (parts.hostname, parts.port))
    except BaseException:
        connection.close()
        raise
    return connection


async def leave(url: str, draw: random.Random, way: str) -> None:
    """Begin to wait, or not even that, and leave."""
    loop = asyncio.get_running_loop()
    with await connect(url) as connection:
        if way == "in the head":
            await loop.sock_sendall(connection, request("/topics/unread/messages")[: draw.randrange(1, 40)])
        elif way == "in the body":
            head = b"POST /topics/unread/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
            await loop.sock_sendall(connection, head + b'{"value": ')
        else:
            await loop.sock_sendall(connection, request("/topics/unread/messages?wait=300"))
        await asyncio.sleep(draw.uniform(0, 0.2))
        if way == "reset":
            reset(connection)
        elif way == "half-close":
            connection.shutdown(socket.SHUT_WR)
            while await loop.sock_recv(connection, 1000):  # the server hangs up, too
                pass


async def read_slowly(url: str, draw: random.Random, seconds: float) -> None:
    """Ask for eight MiB, and read a byte now and then, or none, for so many seconds."""
    loop = asyncio.get_running_loop()
    with await connect(url, receive_buffer=4096) as connection:
        await loop.sock_sendall(connection, request("/topics/big/messages"))
        reads = draw.random() < 0.7
        with suppress(ConnectionResetError, TimeoutError):
            async with asyncio.timeout(seconds):
                while reads:
                    await loop.sock_recv(connection, 1)
                    await asyncio.sleep(draw.uniform(0, 0.2))
                await asyncio.sleep(seconds)
        reset(connection)


_HELD = """
import socket, sys
connections = [socket.create_connection((sys.argv[1], int(sys.argv[2]))) for _ in range(int(sys.argv[3]))]
for connection in connections:
    connection.sendall(sys.argv[4].encode())
print("waiting", flush=True)
sys.stdin.read()
"""


async def be_killed(url: str, draw: random.Random) -> None:
    """A process with many requests that wait, and then SIGKILL."""
    parts = urlsplit(url)
    arguments = [
        str(parts.hostname),
        str(parts.port),
        str(KILLED),
        request("/topics/unread/messages?wait=300").decode(),
    ]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-SEc", _HELD, *arguments, stdin=pipe, stdout=pipe, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        await asyncio.sleep(draw.uniform(0, 0.2))
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()
