"""The head of a response, and its consequences for the rest, as bits."""

from functools import lru_cache
from typing import Final, TypeAlias

from purgatory.uvicorn.names import HEADER_RE, HEADER_VALUE_RE, STATUS_LINE

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
"""The client doesn't read."""
DEAF: Final = 64
"""Data from the client is dropped."""
DUE: Final = 128
"""The data that it holds is that of a request, which begins in one of the next iterations."""

Encoded: TypeAlias = tuple[bytes, int, int | None]
"""The bytes of a head, the new flags, and the length of the body if the head tells it."""

_WITHOUT_BODY: Final = frozenset((204, 304))


@lru_cache(maxsize=4)  # very many connections may get the same head
def encode(status: int, headers: tuple[tuple[bytes, bytes], ...], flags: int) -> Encoded:
    """Encode the head of a response by uvicorn's rules.

    Raise `RuntimeError` for a wrong header, and `KeyError` for a wrong status.
    """
    content = [STATUS_LINE[status]]
    says_close = False
    length: int | None = None
    for name, value in headers:
        if HEADER_RE.search(name):
            raise RuntimeError("Invalid HTTP header name.")
        if HEADER_VALUE_RE.search(value):
            raise RuntimeError("Invalid HTTP header value.")
        name = name.lower()
        if name == b"content-length" and length is None and not flags & CHUNKED:
            length = int(value)
        elif name == b"transfer-encoding" and value.lower() == b"chunked":
            flags |= CHUNKED
            length = None
        elif name == b"connection" and b"close" in [token.strip() for token in value.lower().split(b",")]:
            flags |= CLOSE
            says_close = True
        content += (name, b": ", value, b"\r\n")
    unframed = status not in _WITHOUT_BODY and length is None and not flags & (CHUNKED | HEAD)
    if status in _WITHOUT_BODY:
        length = 0
        flags &= ~CHUNKED
    elif unframed and flags & HTTP_1_0:
        flags |= CLOSE  # the end of the connection is the end of the body
    if flags & CLOSE and not says_close:
        content.append(b"connection: close\r\n")
    if unframed and not flags & HTTP_1_0:
        flags |= CHUNKED
        content.append(b"transfer-encoding: chunked\r\n")
    content.append(b"\r\n")
    return b"".join(content), flags | STARTED, length
