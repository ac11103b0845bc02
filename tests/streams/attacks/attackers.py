"""What clients of bad will have in common."""

import asyncio
import contextlib
import io
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
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


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Attackers:
    """Clients of one server, and the counts of what they are answered."""

    server: Server
    short: bool
    statuses: Counter[str] = field(default_factory=Counter)
    without_retry_after: int = 0
    notes: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    _session: aiohttp.ClientSession | None = None

    def __post_init__(self) -> None:
        self.seconds = 1.0 if self.short else 12.0
        """How long an attack goes on, if it has no end of its own."""
        self.limit = 4.0 if self.short else 25.0
        """After so long it is broken off."""

    async def __aenter__(self) -> "Attackers":
        connector = aiohttp.TCPConnector(local_addr=(ONE[0], 0), limit=0)
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60))
        return self

    async def __aexit__(self, *raised: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        """Send a request, of which the path is not changed. Underscores in the names of headers are hyphens."""
        assert self._session is not None
        url = URL(f"http://127.0.0.1:{self.server.port}{path}", encoded=True)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            async with self._session.request(
                method, url, data=io.BytesIO(body) if body else None, headers=named
            ) as response:
                answer = Answer(
                    response.status,
                    {name.lower(): value for name, value in response.headers.items()},
                    await response.read(),
                )
        except asyncio.CancelledError:
            self.statuses["waiting"] += 1
            raise
        except (aiohttp.ClientError, TimeoutError):
            self.statuses["none"] += 1
            return Answer(0, {}, b"")
        self.count(answer.status, answer.headers)
        return answer

    async def put(self, name: str, body: bytes = b"", **headers: str) -> Answer:
        """Create a stream, of text unless the headers say otherwise."""
        return await self.request("PUT", f"{ROOT}/{name}", body, **{**TEXT, **headers})

    async def post(self, name: str, body: bytes, **headers: str) -> Answer:
        """Append, text unless the headers say otherwise."""
        return await self.request("POST", f"{ROOT}/{name}", body, **{**TEXT, **headers})

    def count(self, status: int, headers: Iterable[str]) -> None:
        """An attacker was answered."""
        self.statuses[str(status)] += 1
        if status in (429, 503) and "retry-after" not in headers:
            self.without_retry_after += 1

    def note(self, text: str) -> None:
        """Say what the attack has done."""
        self.notes.append(text)

    def check(self, name: str, seen: object, expected: str, ok: bool) -> None:
        """Add a fact."""
        self.checks.append(Check(name, str(seen), expected, ok))

    async def fill(self, name: str, piece: bytes, total: int) -> int:
        """Make a stream of text with `total` bytes, by appends as large as the server takes. Returns their size."""
        await self.put(name)
        size = await greatest(total // len(piece), lambda count: self._append(name, piece * count))
        for _ in range(total // (size * len(piece)) - 1):
            await self.post(name, piece * size)
        return size * len(piece)

    async def _append(self, name: str, body: bytes) -> int:
        return (await self.post(name, body)).status

    @contextlib.asynccontextmanager
    async def connections(self) -> AsyncIterator["Connections"]:
        """Connections that are kept. At the end they are closed, and their answers counted."""
        kept = Connections(self)
        try:
            yield kept
        finally:
            kept.close()


class Connections:
    """Connections of which answers are read as the attack likes, by sockets with small buffers."""

    def __init__(self, attackers: Attackers) -> None:
        self.sockets: list[socket.socket] = []
        self._attackers = attackers
        self._counted = False

    async def open(self, count: int, sent: bytes | Callable[[int], bytes], addresses: Iterable[str] = ONE) -> None:
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
        """Count the answers so far, of which nothing must have been read."""
        self._counted = True
        for opened in self.sockets:
            try:
                head, _, _ = opened.recv(4096, socket.MSG_PEEK).partition(b"\r\n\r\n")
            except BlockingIOError:
                self._attackers.statuses["waiting"] += 1
                continue
            except OSError:
                head = b""
            if not head.startswith(b"HTTP/1.1 "):
                self._attackers.statuses["none"] += 1
                continue
            first, *lines = head.decode("latin-1").lower().split("\r\n")
            self._attackers.count(int(first.split()[1]), {line.partition(":")[0] for line in lines})

    def close(self) -> None:
        """Close all of them."""
        if not self._counted:
            self.count()
        for opened in self.sockets:
            opened.close()


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
    done = 0

    async def client(number: int) -> None:
        nonlocal done
        count = 0
        while time.monotonic() < end:
            await request(number, count)
            count += 1
            done += 1

    await asyncio.gather(*(client(number) for number in range(clients)))
    return done


async def spread(count: int, clients: int, request: Callable[[int], Awaitable[object]]) -> None:
    """Make `count` requests, with so many clients at once."""
    left = iter(range(count))

    async def client() -> None:
        for number in left:
            await request(number)

    await asyncio.gather(*(client() for _ in range(clients)))


async def flood(attackers: Attackers, sent: bytes, clients: int = 40) -> None:
    """Have clients send a request again and again, on a new connection where the one before was closed."""
    end = time.monotonic() + attackers.seconds

    async def client() -> None:
        while time.monotonic() < end:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await _send_until(end, attackers, sent)

    await asyncio.gather(*(client() for _ in range(clients)))


async def _send_until(end: float, attackers: Attackers, sent: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", attackers.server.port)
    with contextlib.closing(writer):
        while time.monotonic() < end:
            writer.write(sent)
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
            named = dict(line.split(": ", 1) for line in lines[1:] if line)
            attackers.count(int(lines[0].split()[1]), named)
            await reader.readexactly(int(named.get("content-length", 0)))
            if "close" in named.get("connection", ""):
                return
