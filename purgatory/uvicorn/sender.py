"""The `send` of a request, which middlewares may keep when the request is parked."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from purgatory.asgi.interface import EXTENSION, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from purgatory.uvicorn.parked import QuietConnection


def parkable(app: Any) -> Callable[[Scope, Receive, Send], Awaitable[object]]:
    """Return an application that passes a `Sender` with each request."""

    async def call(scope: Scope, receive: Receive, send: Send) -> object:
        sender = Sender(send)
        if (offered := scope["extensions"].get(EXTENSION)) is not None:  # otherwise the client has disconnected already
            offered["send"] = sender
        try:
            result: object = await app(scope, receive, sender)
        finally:
            sender.returned()
            if offered is not None:
                # Otherwise the scope and its headers would be in a cycle, and wait for the garbage collector.
                offered.clear()
        return result

    return call


class Sender:
    """Calls uvicorn's `send`, or after parking the quiet connection's `send`, and then drops uvicorn's objects."""

    __slots__ = ("_head", "_quiet", "_send")

    def __init__(self, send: Send) -> None:
        self._send: Any = send
        self._quiet: QuietConnection | None = None
        self._head: Message | None = None
        """The head of the response, which is written together with the first piece of the body."""

    def __call__(self, message: Message) -> Awaitable[None]:
        """Send a message, as ASGI's `send`."""
        if self._quiet is None:
            sent: Awaitable[None] = self._send(message)
            return sent
        return self._accept(self._quiet, message)

    def returned(self) -> None:
        """Notify the listener that the application has returned."""
        if self._quiet is not None and self._quiet.listener is not None:
            self._quiet.listener.returned()

    def is_of(self, cycle: RequestResponseCycle) -> bool:
        """Return whether it belongs to this request."""
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
