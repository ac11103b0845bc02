"""The `send` of a request, which middlewares may keep when the request is parked."""

from collections.abc import Awaitable
from typing import Any

from purgatory.asgi.interface import Message, Send
from purgatory.uvicorn.names import RequestResponseCycle
from purgatory.uvicorn.parked import QuietConnection


class Sender:
    """Calls uvicorn's `send`, or after parking the quiet connection's `send`, and then drops uvicorn's objects."""

    __slots__ = ("_head", "_send", "quiet")

    def __init__(self, send: Send) -> None:
        self._send: Any = send
        self.quiet: QuietConnection | None = None
        """The connection of the request after parking."""
        self._head: Message | None = None
        """The head of the response, which is written together with the first piece of the body."""

    def send(self, message: Message) -> Awaitable[None]:
        """Send a message, as ASGI's `send`."""
        if self.quiet is None:
            sent: Awaitable[None] = self._send(message)
            return sent
        return self._accept(self.quiet, message)

    @staticmethod
    def find(send: Send, cycle: RequestResponseCycle) -> "Sender | None":
        """Return the sender of this request if `send` is its method."""
        sender = getattr(send, "__self__", None)
        return sender if isinstance(sender, Sender) and sender._send == cycle.send else None

    def park(self, quiet: QuietConnection) -> None:
        """Send to `quiet` from now on."""
        self.quiet = quiet
        self._send = None

    async def _accept(self, quiet: QuietConnection, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = message
        elif self._head is None:
            quiet.send(message)
        else:
            head, self._head = self._head, None
            quiet.send(head, message)
