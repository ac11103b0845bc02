"""Responses for frameworks whose handlers can't return an ASGI application."""

from typing import Any, Final

from purgatory.asgi.interface import Message
from purgatory.asgi.middleware import park_through

_OF_THE_BODY: Final = frozenset(
    (b"content-length", b"content-type", b"content-encoding", b"transfer-encoding", b"etag")
)
"""Headers of the framework's own response, which is empty."""

_SEVERAL: Final = frozenset((b"set-cookie", b"vary"))
"""Headers that a response may have several times."""


@park_through
class DelayedInScope:
    """An ASGI middleware for Litestar, Django, Quart and others. Put it around the application.

    A handler then puts a `DelayedResponse` or an `EventStream` into the scope, and returns an empty response:

        request.scope["delayed"] = DelayedResponse(operation, render)

    The framework first does all that it does after a handler, such as saving the session. Its own response isn't sent,
    and its headers join those of the delayed one. So what the framework does then comes before the wait, and only
    what is around this middleware comes after it. If the framework's response is no success (300 or more), that is sent
    instead, and the operation is cancelled.
    """

    def __init__(self, app: Any) -> None:
        """Put the middleware around an ASGI application."""
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Run the application, and then the delayed response, if there is one."""
        headers: list[tuple[bytes, bytes]] = []

        async def unless_delayed(message: Message) -> None:
            is_start = message["type"] == "http.response.start"
            if is_start and message["status"] >= 300:
                scope.pop("delayed", None)
            if "delayed" not in scope:
                await send(message)
            elif is_start:
                headers.extend((name.lower(), value) for name, value in message.get("headers", ()))

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = list(message.get("headers", ()))
                taken = {name for name, _ in own} - _SEVERAL | _OF_THE_BODY
                message["headers"] = own + [header for header in headers if header[0] not in taken]
            await send(message)

        await self.app(scope, receive, unless_delayed)
        delayed = scope.pop("delayed", None)
        if delayed is not None:
            await delayed(scope, receive, with_headers)
