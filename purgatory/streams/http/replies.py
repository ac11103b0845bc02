"""Replies: responses that are made in one go."""

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from purgatory.streams.admission import SHORT

ALWAYS: Final = [
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"cross-origin"),
    # A stream of text/html, opened by its address, runs no script: that could do all that the page may.
    (b"content-security-policy", b"sandbox"),
]
"""The headers of every response. Many requests wait: no middleware adds them, as it would have to wait too."""
JSON: Final = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
"""The headers of a response that is JSON, and that no cache keeps."""
PART: Final = 64 * 1024
"""Bytes of a body that are given to the server at once. It takes more when the client has taken most of them."""


class Reply(Response):
    """A response, of which the headers are as they are given."""

    def __init__(self, status: int, headers: Iterable[tuple[bytes, bytes]] = (), body: bytes | None = None) -> None:
        self.status_code = status
        self.body = b"" if body is None else body
        self.size = len(self.body)
        """Bytes of the body, or a few more."""
        self.background = None
        self.raw_headers = [*ALWAYS, *headers]
        if body is not None:
            self.raw_headers.append((b"content-length", b"%d" % len(body)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": [*self.raw_headers]})
        rest: bytes | memoryview = self.body
        if len(rest) > SHORT:
            rest = memoryview(rest)
            while rest:
                await send({"type": "http.response.body", "body": rest[:PART], "more_body": True})
                rest = rest[PART:]
        # Of a long body this is empty. The server takes it when the client has taken the rest, which counts until then.
        await send({"type": "http.response.body", "body": rest})


class LongReply(Reply):
    """A reply of which the body is made when it is sent: its size is counted before."""

    def __init__(
        self, status: int, headers: Iterable[tuple[bytes, bytes]], size: int, make: Callable[[], bytes]
    ) -> None:
        """With a body of about `size` bytes, which `make()` returns."""
        super().__init__(status, headers)
        self.size = size
        self._make: Callable[[], bytes] | None = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._make is not None, "it is sent once"
        self.body = self._make()
        self._make = None  # and with it what the body was made of
        self.raw_headers.append((b"content-length", b"%d" % len(self.body)))
        await super().__call__(scope, receive, send)


def json_reply(status: int, answer: Any, headers: Iterable[tuple[bytes, bytes]] = ()) -> Reply:
    """A response that is JSON, with more headers."""
    return Reply(status, [*JSON, *headers], json.dumps(answer).encode())


def error(status: int, message: str, headers: Iterable[tuple[bytes, bytes]] = (), **more: Any) -> Reply:
    """A response that says what is wrong, as JSON."""
    return json_reply(status, {"error": {"message": message, **more}}, headers)
