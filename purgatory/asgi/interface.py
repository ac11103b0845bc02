"""The types of ASGI, and of its extension `purgatory.parking` (PARKING.md)."""

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

__all__ = [
    "EXTENSION",
    "BaseResponse",
    "Message",
    "NotParked",
    "Parked",
    "ParkedApplication",
    "Receive",
    "Scope",
    "Send",
    "logger",
]

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

EXTENSION: Final = "purgatory.parking"
"""The extension's name in `scope["extensions"]`."""

logger: Final = logging.getLogger("purgatory.asgi")

if TYPE_CHECKING:
    from starlette.responses import Response as BaseResponse
else:
    try:  # FastAPI accepts an object as a response only if it is one of Starlette's
        from starlette.responses import Response as BaseResponse
    except ImportError:

        class BaseResponse:
            """A placeholder if Starlette is not installed."""


class NotParked(Exception):
    """A request keeps its task while it waits. The text says why."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(reason)
        self.advice: str = advice
        """What the author of the application can do."""


class Parked(Protocol):
    """A parked request, as the application sees it."""

    def send(self, *messages: Message) -> None:
        """Write messages of ASGI's `send`, all messages of a call together. Raise if one of them is wrong."""

    def close(self) -> None:
        """Close the connection without the rest of the response."""


class ParkedApplication(Protocol):
    """The application's side of a parked request. The server calls nothing after the last message."""

    def returned(self) -> None:
        """Drop the objects of the request, because the application has returned."""

    def disconnected(self) -> None:
        """Take note that the client has disconnected."""

    def shutdown(self) -> None:
        """Send the response now, because the server shuts down."""

    def pause_writing(self) -> None:
        """Send nothing more for now, because the client doesn't read."""

    def resume_writing(self) -> None:
        """Go on with sending."""
