"""The head of a response, and what it says of the rest, as bits."""

from typing import Final, TypeAlias

from uvicorn.protocols.http.httptools_impl import HEADER_RE, HEADER_VALUE_RE, STATUS_LINE

from purgatory.asgi.parking import Message

__all__ = ["CHUNKED", "CLOSE", "HEAD", "HTTP_1_0", "PAUSED", "STARTED", "Framing"]

HEAD: Final = 1
"""The request's method is HEAD."""
HTTP_1_0: Final = 2
CLOSE: Final = 4
"""The connection is closed after the response."""
STARTED: Final = 8
"""The head of the response is sent."""
CHUNKED: Final = 16
"""The response has chunks."""
PAUSED: Final = 32
"""The client does not take what was sent."""

Encoded: TypeAlias = tuple[bytes, int, int | None]
"""The bytes of a head, the flags then, and the length of the body if the head tells it."""

_WITHOUT_BODY: Final = frozenset((204, 304))


class Framing:
    """Encodes heads, by uvicorn's rules. The last one is kept: very many connections may be sent the same one."""

    __slots__ = ("_defaults", "_encoded", "_start")

    def __init__(self) -> None:
        self._start: Message | None = None
        self._defaults: list[tuple[bytes, bytes]] | None = None
        self._encoded: Encoded | None = None

    def head(self, start: Message, defaults: list[tuple[bytes, bytes]], flags: int) -> Encoded:
        """Encode ASGI's `http.response.start`, after the server's own headers `defaults`.

        Raises `RuntimeError` for a wrong header, `KeyError` for a wrong status.
        """
        if flags:
            return _encode(start, defaults, flags)
        if self._encoded is None or start is not self._start or defaults is not self._defaults:
            self._encoded = _encode(start, defaults, flags)
            self._start, self._defaults = start, defaults
        return self._encoded


def _encode(start: Message, defaults: list[tuple[bytes, bytes]], flags: int) -> Encoded:
    status = start["status"]
    content = [STATUS_LINE[status]]
    says_close = False
    length: int | None = None
    for name, value in [*defaults, *start.get("headers", ())]:
        if HEADER_RE.search(name):
            raise RuntimeError("Invalid HTTP header name.")
        if HEADER_VALUE_RE.search(value):
            raise RuntimeError("Invalid HTTP header value.")
        name = name.lower()
        if name == b"content-length" and not flags & CHUNKED:
            length = int(value)
        elif name == b"transfer-encoding" and value.lower() == b"chunked":
            flags |= CHUNKED
            length = None
        elif name == b"connection" and b"close" in [token.strip() for token in value.lower().split(b",")]:
            flags |= CLOSE
            says_close = True
        content += (name, b": ", value, b"\r\n")
    if length is None and not flags & (CHUNKED | HEAD):
        if status in _WITHOUT_BODY:
            length = 0
        elif flags & HTTP_1_0:
            flags |= CLOSE  # the end of the connection is the end of the body
        else:
            flags |= CHUNKED
            content.append(b"transfer-encoding: chunked\r\n")
    if flags & CLOSE and not says_close:
        content.append(b"connection: close\r\n")
    content.append(b"\r\n")
    return b"".join(content), flags | STARTED, length
