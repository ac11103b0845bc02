"""Replies: responses that are made in one go."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

__all__ = ["ALWAYS", "Endpoint", "Refusal", "Reply", "error"]

ALWAYS: Final = [
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"cross-origin"),
]
"""The headers of every response. Many requests wait: no middleware adds them, as it would have to wait too."""


class Reply(Response):
    """A response, of which the headers are as they are given."""

    def __init__(self, status: int, headers: Iterable[tuple[bytes, bytes]] = (), body: bytes | None = None) -> None:
        self.status_code = status
        self.body = b"" if body is None else body
        self.background = None
        self.raw_headers = [*ALWAYS, *headers]
        if body is not None:
            self.raw_headers.append((b"content-length", b"%d" % len(body)))


class Refusal(Exception):
    """A request is refused, by the server and not by the protocol's core."""

    def __init__(self, status: int, message: str, headers: Iterable[tuple[bytes, bytes]] = (), code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.headers = list(headers)
        self.code = code


class Endpoint(ABC):
    """An ASGI application that answers with one response, or refuses."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        try:
            response = await self.answer(scope, receive)
        except Exception as exception:
            refusal = self.refusal(exception)
            if refusal is None:
                raise
            response = refusal
        await response(scope, receive, send)

    @abstractmethod
    async def answer(self, scope: Scope, receive: Receive) -> Response:
        """The response to a request. Raises the reason of a refusal."""

    @abstractmethod
    def refusal(self, exception: Exception) -> Response | None:
        """The response for the reason of a refusal; `None` for other exceptions."""


def error(status: int, message: str, headers: Iterable[tuple[bytes, bytes]] = (), **more: Any) -> Reply:
    """A response that says what is wrong, as JSON."""
    body = json.dumps({"error": {"message": message, **more}}).encode()
    kind = (b"content-type", b"application/json"), (b"cache-control", b"no-store")
    return Reply(status, [*kind, *headers], body)
