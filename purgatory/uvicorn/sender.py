"""The `send` of a request, which middlewares may keep when the request is parked."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from purgatory.asgi.interface import EXTENSION, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from purgatory.uvicorn.parked import QuietConnection

__all__ = ["Sender", "parkable"]


def parkable(app: Any) -> Callable[[Scope, Receive, Send], Awaitable[object]]:
    """An application with a `Sender` for each request."""

    async def call(scope: Scope, receive: Receive, send: Send) -> object:
        sender = Sender(send)
        if (offered := scope["extensions"].get(EXTENSION)) is not None:  # else the client has disconnected already
            offered["send"] = sender
        try:
            result: object = await app(scope, receive, sender)
        finally:
            sender.returned()
            if offered is not None:
                # Else the scope, and the headers in it, would be part of a cycle and wait for the garbage collector.
                offered.clear()
        return result

    return call


class Sender:
    """uvicorn's `send`. When the request is parked, that of the quiet connection, and uvicorn's objects are let go."""

    __slots__ = ("_head", "_quiet", "_send")

    def __init__(self, send: Send) -> None:
        self._send: Any = send
        self._quiet: QuietConnection | None = None
        self._head: Message | None = None
        """The head of the response, which is written together with the first piece of the body."""

    def __call__(self, message: Message) -> Awaitable[None]:
        """ASGI's `send`."""
        if self._quiet is None:
            sent: Awaitable[None] = self._send(message)
            return sent
        return self._accept(self._quiet, message)

    def returned(self) -> None:
        """The application has returned."""
        if self._quiet is not None and self._quiet.listener is not None:
            self._quiet.listener.returned()

    def is_of(self, cycle: RequestResponseCycle) -> bool:
        """Whether it is that of this request."""
        sent = self._send == cycle.send
        return bool(sent)

    def park(self, quiet: "QuietConnection") -> None:
        """Send to `quiet` from now on."""
        self._quiet = quiet
        self._send = None

    async def _accept(self, quiet: "QuietConnection", message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = message
        elif self._head is None:
            quiet.send(message)
        else:
            head, self._head = self._head, None
            quiet.send(head, message)
