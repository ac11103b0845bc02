"""What clients of bad will have in common."""

import asyncio
import contextlib
import io
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import cycle
from typing import Self

import aiohttp
from yarl import URL

from tests.streams.processes import ROOT, TEXT

SUBSCRIPTIONS = f"{ROOT}/__ds/subscriptions"
MIB = 1024 * 1024
ONE = ("127.0.0.1",)
HUNDRED = tuple(f"127.0.1.{number}" for number in range(1, 101))


@dataclass
class Attackers:
    """Clients of one server, and the counts of what they are answered."""

    port: int
    session: aiohttp.ClientSession
    short: bool
    statuses: Counter[str] = field(default_factory=Counter)
    without_retry_after: int = 0
    notes: list[str] = field(default_factory=list)
    """What the attack has done."""
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.seconds = 1.0 if self.short else 12.0
        """How long an attack goes on, if it has no end of its own."""
        self.limit = 4.0 if self.short else 25.0
        """After so long it is broken off."""

    async def request(self, method: str, path: str, body: bytes = b"", /, **headers: str) -> tuple[int, bytes]:
        """Send a request, of which the path is not changed. Returns the status, 0 if there is none, and the body.

        Underscores in the names of headers are hyphens.
        """
        url = URL(f"http://127.0.0.1:{self.port}{path}", encoded=True)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        data = io.BytesIO(body) if body else None
        try:
            async with self.session.request(method, url, data=data, headers=named) as response:
                answer = response.status, await response.read()
        except asyncio.CancelledError:
            self.statuses["waiting"] += 1
            raise
        except (aiohttp.ClientError, TimeoutError):
            self.statuses["none"] += 1
            return 0, b""
        self.count(response.status, {name.lower(): value for name, value in response.headers.items()})
        return answer

    async def put(self, name: str, body: bytes = b"", /, **headers: str) -> int:
        """Create a stream, of text unless the headers say otherwise. Returns the status."""
        return (await self.request("PUT", f"{ROOT}/{name}", body, **{**TEXT, **headers}))[0]

    async def post(self, name: str, body: bytes, **headers: str) -> int:
        """Append, text unless the headers say otherwise. Returns the status."""
        return (await self.request("POST", f"{ROOT}/{name}", body, **{**TEXT, **headers}))[0]

    def count(self, status: int, headers: Mapping[str, str]) -> None:
        self.statuses[str(status)] += 1
        if status in (429, 503) and "retry-after" not in headers:
            self.without_retry_after += 1

    def check(self, note: str, *, ok: bool) -> None:
        """Add a fact, and whether it is as it should be."""
        self.notes.append(note)
        self.failures += [] if ok else [note]

    async def fill(self, name: str, piece: bytes, total: int) -> int:
        """Make a stream of text with `total` bytes, by appends as large as the server takes. Returns their size."""
        await self.put(name)
        size = await greatest(total // len(piece), lambda count: self.post(name, piece * count))
        for _ in range(total // (size * len(piece)) - 1):
            await self.post(name, piece * size)
        return size * len(piece)

    async def hold(self, seconds: float, count: int, sent: "Sent", addresses: Iterable[str] = ONE) -> None:
        """Keep connections for so long, which have sent the bytes."""
        with Connections(self) as kept:
            opening = asyncio.create_task(kept.open(count, sent, addresses))
            await asyncio.sleep(seconds)
            opening.cancel()  # where the server does not read, some have not sent all
            with contextlib.suppress(asyncio.CancelledError):
                await opening


Sent = bytes | Callable[[int], bytes]
"""What each connection sends, or that by its number."""


class Connections:
    """Connections of which answers are read as the attack likes, by sockets with small buffers.

    At the end of the block their answers are counted, and they are closed.
    """

    def __init__(self, attackers: Attackers) -> None:
        self.sockets: list[socket.socket] = []
        self._attackers = attackers
        self._num_counted = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.count()
        for each in self.sockets:
            each.close()

    async def open(self, count: int, sent: Sent, addresses: Iterable[str] = ONE) -> None:
        """Open `count` connections, in turn from these addresses, and send the bytes by each."""
        loop = asyncio.get_running_loop()

        async def connect(number: int, address: str) -> None:
            opened = socket.socket()
            self.sockets.append(opened)
            opened.setblocking(False)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            opened.bind((address, 0))
            with contextlib.suppress(OSError):  # the server may refuse before it has all
                await loop.sock_connect(opened, ("127.0.0.1", self._attackers.port))
                await loop.sock_sendall(opened, sent if isinstance(sent, bytes) else sent(number))

        await asyncio.gather(*map(connect, range(count), cycle(addresses)))

    def count(self) -> None:
        """Count the answers so far, of which nothing must have been read, once."""
        uncounted, self._num_counted = self.sockets[self._num_counted :], len(self.sockets)
        for each in uncounted:
            try:
                head = each.recv(4096, socket.MSG_PEEK)
            except OSError as error:
                self._attackers.statuses["waiting" if isinstance(error, BlockingIOError) else "none"] += 1
                continue
            if head.startswith(b"HTTP/1.1 "):
                self._attackers.count(*parsed(head))
            else:
                self._attackers.statuses["none"] += 1


def parsed(head: bytes) -> tuple[int, dict[str, str]]:
    """The status and the headers of an answer, or of its beginning."""
    first, *lines = head.partition(b"\r\n\r\n")[0].decode("latin-1").lower().split("\r\n")
    return int(first.split()[1]), {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


async def greatest(size: int, attempt: Callable[[int], Awaitable[int]]) -> int:
    """The size that the server does not refuse, by halves: an attacker goes to the limit, wherever that is."""
    while await attempt(size) in (400, 403, 413, 431) and size > 1:
        size //= 2
    return size


def head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode("latin-1")


async def repeat(seconds: float, clients: int, request: Callable[[int, int], Awaitable[object]]) -> int:
    """Have clients repeat a request for so long: it gets the numbers of the client and of the request."""
    end = time.monotonic() + seconds

    async def client(number: int) -> int:
        made = 0
        while time.monotonic() < end:
            await request(number, made)
            made += 1
        return made

    return sum(await asyncio.gather(*map(client, range(clients))))


async def spread(count: int, clients: int, request: Callable[[int], Awaitable[object]]) -> None:
    """Make `count` requests, with so many clients at once."""
    left = iter(range(count))

    async def client() -> None:
        for number in left:
            await request(number)

    await asyncio.gather(*(client() for _ in range(clients)))


async def flood(attackers: Attackers, sent: bytes, clients: int = 40) -> None:
    """Have clients send a request again and again, by a new connection where the one before was closed."""
    end = time.monotonic() + attackers.seconds

    async def connection(*_: int) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            reader, writer = await asyncio.open_connection("127.0.0.1", attackers.port)
            with contextlib.closing(writer):
                headers: dict[str, str] = {}
                while time.monotonic() < end and "close" not in headers.get("connection", ""):
                    writer.write(sent)
                    status, headers = parsed(await reader.readuntil(b"\r\n\r\n"))
                    attackers.count(status, headers)
                    await reader.readexactly(int(headers.get("content-length", 0)))

    await repeat(attackers.seconds, clients, connection)
