"""What clients of bad will have in common."""

import asyncio
import contextlib
import io
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import aiohttp
from yarl import URL

from tests.streams.attacks.outcome import Check
from tests.streams.attacks.server import Server

ROOT = "/v1/stream"
SUBSCRIPTIONS = f"{ROOT}/__ds/subscriptions"
TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
MIB = 1024 * 1024
ONE = ("127.0.0.1",)
HUNDRED = tuple(f"127.0.1.{number}" for number in range(1, 101))


@dataclass
class Attackers:
    """Clients of one server, and the counts of what they are answered."""

    server: Server
    session: aiohttp.ClientSession
    short: bool
    statuses: Counter[str] = field(default_factory=Counter)
    without_retry_after: int = 0
    notes: list[str] = field(default_factory=list)
    """What the attack has done."""
    checks: list[Check] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.seconds = 1.0 if self.short else 12.0
        """How long an attack goes on, if it has no end of its own."""
        self.limit = 4.0 if self.short else 25.0
        """After so long it is broken off."""

    async def request(self, method: str, path: str, body: bytes = b"", /, **headers: str) -> tuple[int, bytes]:
        """Send a request, of which the path is not changed. Returns the status, 0 if there is none, and the body.

        Underscores in the names of headers are hyphens.
        """
        url = URL(f"http://127.0.0.1:{self.server.port}{path}", encoded=True)
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
        """An attacker was answered."""
        self.statuses[str(status)] += 1
        if status in (429, 503) and "retry-after" not in headers:
            self.without_retry_after += 1

    def check(self, name: str, seen: object, expected: str, ok: bool) -> None:
        """Add a fact."""
        self.checks.append(Check(name, str(seen), expected, ok))

    async def fill(self, name: str, piece: bytes, total: int) -> int:
        """Make a stream of text with `total` bytes, by appends as large as the server takes. Returns their size."""
        await self.put(name)
        size = await greatest(total // len(piece), lambda count: self.post(name, piece * count))
        for _ in range(total // (size * len(piece)) - 1):
            await self.post(name, piece * size)
        return size * len(piece)

    async def hold(self, seconds: float, count: int, sent: "Sent", addresses: Iterable[str] = ONE) -> None:
        """Keep connections for so long, which have sent the bytes."""
        with self.connections() as kept:
            opening = asyncio.create_task(kept.open(count, sent, addresses))
            await asyncio.sleep(seconds)
            opening.cancel()  # where the server does not read, some have not sent all
            with contextlib.suppress(asyncio.CancelledError):
                await opening

    @contextlib.contextmanager
    def connections(self) -> Iterator["Connections"]:
        """Connections that are kept. At the end they are closed, and their answers counted."""
        kept = Connections(self)
        try:
            yield kept
        finally:
            kept.count()
            for each in kept.sockets:
                each.close()


Sent = bytes | Callable[[int], bytes]
"""What each connection sends, or that by its number."""


class Connections:
    """Connections of which answers are read as the attack likes, by sockets with small buffers."""

    def __init__(self, attackers: Attackers) -> None:
        self.sockets: list[socket.socket] = []
        self._attackers = attackers
        self._is_counted = False

    async def open(self, count: int, sent: Sent, addresses: Iterable[str] = ONE) -> None:
        """Open `count` connections, in turn from these addresses, and send the bytes by each."""
        addresses = tuple(addresses)
        opened = (
            self._open(addresses[number % len(addresses)], sent if isinstance(sent, bytes) else sent(number))
            for number in range(count)
        )
        await asyncio.gather(*opened)

    async def _open(self, address: str, sent: bytes) -> None:
        loop = asyncio.get_running_loop()
        opened = socket.socket()
        opened.setblocking(False)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        opened.bind((address, 0))
        self.sockets.append(opened)
        with contextlib.suppress(OSError):  # the server may refuse before it has all
            await loop.sock_connect(opened, ("127.0.0.1", self._attackers.server.port))
            await loop.sock_sendall(opened, sent)

    def count(self) -> None:
        """Count the answers so far, of which nothing must have been read, once."""
        if self._is_counted:
            return
        self._is_counted = True
        for opened in self.sockets:
            try:
                head = opened.recv(4096, socket.MSG_PEEK)
            except BlockingIOError:
                self._attackers.statuses["waiting"] += 1
                continue
            except OSError:
                head = b""
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
    """The head of a request."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode("latin-1")


async def repeat(seconds: float, clients: int, request: Callable[[int, int], Awaitable[object]]) -> int:
    """Have clients repeat a request for so long: it gets the numbers of the client and of the request."""
    end = time.monotonic() + seconds

    async def client(number: int) -> int:
        count = 0
        while time.monotonic() < end:
            await request(number, count)
            count += 1
        return count

    return sum(await asyncio.gather(*(client(number) for number in range(clients))))


async def spread(count: int, clients: int, request: Callable[[int], Awaitable[object]]) -> None:
    """Make `count` requests, with so many clients at once."""
    left = iter(range(count))

    async def client() -> None:
        for number in left:
            await request(number)

    await asyncio.gather(*(client() for _ in range(clients)))


async def flood(attackers: Attackers, sent: bytes, clients: int = 40) -> int:
    """Have clients send a request again and again, by a new connection where the one before was closed.

    Returns how many were answered.
    """
    end = time.monotonic() + attackers.seconds
    answered = 0

    async def connection() -> None:
        nonlocal answered
        reader, writer = await asyncio.open_connection("127.0.0.1", attackers.server.port)
        with contextlib.closing(writer):
            while time.monotonic() < end:
                writer.write(sent)
                status, headers = parsed(await reader.readuntil(b"\r\n\r\n"))
                attackers.count(status, headers)
                answered += 1
                await reader.readexactly(int(headers.get("content-length", 0)))
                if "close" in headers.get("connection", ""):
                    return

    async def client(*_: int) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await connection()

    await repeat(attackers.seconds, clients, client)
    return answered
