"""The admission of requests, before the database is asked."""

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from purgatory.streams.clients import Clients, TooManyRequests
from purgatory.streams.http.limits import Held, address
from purgatory.streams.http.replies import RETRY, Refusal, Reply, error
from purgatory.streams.settings import Settings
from purgatory.streams.streams import Streams

__all__ = ["Endpoint", "Limits"]

_HELD: Final = 128 * 1024 * 1024
_LONG: Final = 64 * 1024
"""Bytes of a response from which on they are counted until the client has taken them."""


class Limits:
    """The counts of requests and bytes that the endpoints of a server share."""

    def __init__(self, settings: Settings) -> None:
        self.clients = Clients(settings.max_pending_client, "requests in progress")
        most = max(_HELD, 2 * settings.max_body)
        self.bodies = Held(most, f"the limit for request bodies in memory is reached: {most} bytes")
        self.answers = Held(most, f"the limit for long responses in memory is reached: {most} bytes")


class Endpoint(ABC):
    """An ASGI application that answers with one response, or refuses.

    A request is in progress until it is answered, or waits.
    """

    def __init__(self, streams: Streams, settings: Settings, limits: Limits) -> None:
        self.streams = streams
        self.settings = settings
        self.limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        client = scope["purgatory.client"] = address(scope)
        clients = self.limits.clients
        try:
            clients.check(client)
        except TooManyRequests as refused:
            await error(429, str(refused), [RETRY])(scope, receive, send)
            return
        clients.enter(client)
        try:
            response = await self._answer(scope, receive)
            if isinstance(response, Reply):
                await self._send(response, scope, receive, send)
                return
        finally:
            clients.leave(client)
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        try:
            return await self.answer(scope, receive)
        except Exception as exception:
            refusal = self.refusal(exception)
            if refusal is None:
                raise
            return refusal

    async def _send(self, reply: Reply, scope: Scope, receive: Receive, send: Send) -> None:
        if len(reply.body) < _LONG:
            await reply(scope, receive, send)
            return
        with self.limits.answers.some() as hold:
            try:
                hold(len(reply.body))
            except Refusal as refused:
                reply = error(refused.status, str(refused), refused.headers)
            # Cancelled at the end of a shutdown's patience, it is broken off, with a line in the log and no traceback.
            with suppress(asyncio.CancelledError):
                await reply(scope, receive, send)

    @abstractmethod
    async def answer(self, scope: Scope, receive: Receive) -> Response:
        """The response to a request. Raises the reason of a refusal."""

    @abstractmethod
    def refusal(self, exception: Exception) -> Response | None:
        """The response for the reason of a refusal; `None` for other exceptions."""
