"""Requests that are odd in their framing, their path or their data, and the statuses that they must have."""

import asyncio
import json

from tests.streams.attacks.attackers import JSON, ROOT, SUBSCRIPTIONS, Attackers, head

CHUNK = b"1\r\nx\r\n0\r\n\r\n"
TYPE = "Content-Type: text/plain"
CHUNKED = "Transfer-Encoding: chunked"
POST = ("POST", f"{ROOT}/odd", TYPE)
FRAMINGS: dict[str, tuple[bytes, tuple[int, ...]]] = {
    "Transfer-Encoding: gzip, chunked": (head(*POST, "Transfer-Encoding: gzip, chunked") + CHUNK, (400, 501)),
    "Transfer-Encoding: gzip": (head(*POST, "Transfer-Encoding: gzip") + b"x", (400, 501)),
    "Transfer-Encoding: chunked, chunked": (head(*POST, "Transfer-Encoding: chunked, chunked") + CHUNK, (400, 501)),
    "Transfer-Encoding: xchunked": (head(*POST, "Transfer-Encoding: xchunked") + CHUNK, (400, 501)),
    "Content-Length and Transfer-Encoding": (head(*POST, "Content-Length: 1", CHUNKED) + CHUNK, (400,)),
    "Transfer-Encoding and Content-Length": (head(*POST, CHUNKED, "Content-Length: 1") + CHUNK, (400,)),
    "two Content-Length": (head(*POST, "Content-Length: 1", "Content-Length: 2") + b"xx", (400,)),
    "Content-Length: +1": (head(*POST, "Content-Length: +1") + b"x", (400,)),
    "Content-Length: 1, 1": (head(*POST, "Content-Length: 1, 1") + b"x", (400,)),
    "Content-Length with 30 digits": (head(*POST, f"Content-Length: {'9' * 30}"), (400, 413)),
    "a chunk of -1": (head(*POST, CHUNKED) + b"-1\r\nx\r\n0\r\n\r\n", (400,)),
    "a chunk of 17 digits": (head(*POST, CHUNKED) + b"f" * 17 + b"\r\nx", (400, 413)),
    "a space before a colon": (head(*POST, "Content-Length : 1") + b"x", (400,)),
    "a folded header": (head(*POST, "X-A: b\r\n c", "Content-Length: 1") + b"x", (204, 400)),
    "NUL in a header": (head(*POST, "X-A: \0", "Content-Length: 1") + b"x", (400,)),
    "no Host": (b"GET /health HTTP/1.1\r\n\r\n", (400,)),
    "two Hosts": (head("GET", "/health", "Host: localhost"), (400,)),
    "HTTP/9.9": (b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n", (400, 505)),
    "not HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", (400,)),
    "CONNECT": (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", (400, 405, 501)),
    "a head of 20 KiB": (head("GET", "/health", f"X-Filler: {'x' * 20 * 1024}"), (431,)),
}
DATA: dict[str, tuple[bytes, tuple[int, ...]]] = {
    "a number of 5,000 digits": (b"9" * 5000, (204, 400)),
    "1e999": (b"1e999", (204, 400)),
    "a lone surrogate": (rb'"\ud800"', (204, 400)),
    "a lone surrogate in a name": (rb'{"\udfff": 1}', (204, 400)),
    "a surrogate in UTF-8": (b'"\xed\xa0\x80"', (400,)),
    "an invalid byte": (b'"\xff"', (400,)),
    "NaN": (b"NaN", (400,)),
    "100,000 brackets": (b"[" * 100_000, (400,)),
    "a name twice": (b'{"a": 1, "a": 2}', (204, 400)),
    "a byte order mark": (b"\xef\xbb\xbf1", (400,)),
}
PULL = {"type": "pull-wake", "wake_stream": "wakes", "pattern": "odd"}

IDS: list[tuple[str, tuple[int, ...], str, str, object]] = [
    # A path of which the decoded form is one of subscriptions, and cut at another place has the id of this one.
    ("PUT of a subscription ons", (201,), "PUT", f"{SUBSCRIPTIONS}/ons", PULL),
    ("claim by %5f%5fds of another", (400, 404, 405), "POST", f"{ROOT}/%5f%5fds/subscriptions/claim", {"worker": "w"}),
    ("PUT of a subscription %ff", (400,), "PUT", f"{SUBSCRIPTIONS}/%ff", PULL),
    ("GET of a subscription %fe", (400, 404), "GET", f"{SUBSCRIPTIONS}/%fe", None),
    ("PUT of a subscription %0a", (201, 400), "PUT", f"{SUBSCRIPTIONS}/a%0ab", PULL),
    ("PUT of a subscription %00", (400,), "PUT", f"{SUBSCRIPTIONS}/a%00b", PULL),
    ("PUT of 257 characters", (400,), "PUT", f"{SUBSCRIPTIONS}/{'x' * 257}", PULL),
    ("claim with a surrogate as worker", (400,), "POST", f"{SUBSCRIPTIONS}/ons/claim", {"worker": "\ud800"}),
]


async def odd(attackers: Attackers) -> None:
    """Each of these requests, and odd ids of subscriptions."""
    await attackers.put("odd")
    await attackers.put("json", **JSON)
    for name, (sent, expected) in FRAMINGS.items():
        _expect(attackers, name, await _raw(attackers, sent), expected)
    for name, (data, expected) in DATA.items():
        _expect(attackers, f"JSON: {name}", await attackers.post("json", data, **JSON), expected)
    for name, expected, method, path, body in IDS:
        sent = b"" if body is None else json.dumps(body).encode()
        _expect(attackers, name, (await attackers.request(method, path, sent, **JSON))[0], expected)
    for path in ("%2e%2e/x", "a%00b", "%ff", "a//b", "%C0%AF"):
        _expect(attackers, f"PUT of a stream {path}", await attackers.put(path), (400, 404))
    _expect(attackers, "GET /health after all of them", (await attackers.request("GET", "/health"))[0], (200,))


async def _raw(attackers: Attackers, sent: bytes) -> int:
    """The status of the answer, 0 if there is none within a second."""
    reader, writer = await asyncio.open_connection("127.0.0.1", attackers.server.port)
    writer.write(sent)
    try:
        first = await asyncio.wait_for(reader.readline(), 1)
    except (OSError, TimeoutError):
        first = b""
    finally:
        writer.transport.abort()
    status = int(first.split()[1]) if first.startswith(b"HTTP/1.1 ") else 0
    if status:
        attackers.count(status, {"retry-after": ""})
    return status


def _expect(attackers: Attackers, name: str, status: int, expected: tuple[int, ...]) -> None:
    attackers.check(name, status or "none", " or ".join(map(str, expected)), status in expected)
