"""The types of ASGI, and of its extension `purgatory.parking` (PARKING.md)."""

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

__all__ = ["EXTENSION", "BaseResponse", "Listener", "Message", "Parked", "Receive", "Scope", "Send", "logger"]

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
    try:  # FastAPI takes an object for a response only if it is one of Starlette's
        from starlette.responses import Response as BaseResponse
    except ImportError:

        class BaseResponse:
            """Nothing is needed of it."""


class Parked(Protocol):
    """A parked request, as the application sees it."""

    def send(self, *messages: Message) -> None:
        """Write messages of ASGI's `send`, those of one call together. Raises an exception for a wrong message."""

    def close(self) -> None:
        """Close the connection without the rest of the response."""


class Listener(Protocol):
    """The application's side of a parked request. Nothing is called any more after the last message."""

    def returned(self) -> None:
        """The application has returned: what the listener still holds of the request may be let go."""

    def disconnected(self) -> None:
        """The client has disconnected."""

    def shutdown(self) -> None:
        """The server shuts down: the response is to be sent now."""

    def pause_writing(self) -> None:
        """The client does not take what was sent: no more is to be sent."""

    def resume_writing(self) -> None:
        """More may be sent."""
