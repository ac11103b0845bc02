"""What all endpoints have in common: admission, and the answers to what is refused."""

import asyncio
import json
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from purgatory import PurgatoryClosed, PurgatoryFull
from purgatory.streams.admission import RETRY, SHORT, SMALL, Limits, Refusal, TooManyRequests, address, current_client
from purgatory.streams.core import errors
from purgatory.streams.core.offsets import encode
from purgatory.streams.engine.streams import Streams
from purgatory.streams.http import requests
from purgatory.streams.http.replies import Reply, error
from purgatory.streams.settings import Settings
from purgatory.streams.storage.database import StorageError, StorageFull, StorageUnavailable

_STATUS: Final[dict[type[Exception], int]] = {
    errors.Invalid: 400,
    errors.NotFound: 404,
    errors.Gone: 410,
    errors.Forbidden: 403,
    errors.Full: 413,
    errors.Conflict: 409,
    StorageFull: 507,
}


class Endpoint(ABC):
    """An ASGI application that answers with one response, or refuses.

    A request is in progress until it is answered, or waits.
    """

    def __init__(self, streams: Streams, settings: Settings, limits: Limits) -> None:
        self.streams = streams
        self.settings = settings
        self.limits = limits
        self._parsing = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope["purgatory.client"] = address(scope.get("client"))
        current_client.set(client)
        clients = self.limits.clients
        try:
            clients.check(client)
        except TooManyRequests as refused:
            await error(429, str(refused), refused.headers)(scope, receive, send)
            return
        clients.enter(client)
        try:
            try:
                response = await self.answer(scope, receive)
            except Exception as exception:
                refusal = self.refusal(exception)
                if refusal is None:
                    raise
                response = refusal
            if isinstance(response, Reply):
                await self._send(response, scope, receive, send)
                return
        finally:
            clients.leave(client)
        await response(scope, receive, send)

    async def _send(self, reply: Reply, scope: Scope, receive: Receive, send: Send) -> None:
        if reply.size <= SHORT:
            await reply(scope, receive, send)
            return
        with self.limits.memory.hold(scope["purgatory.client"]) as hold:
            try:
                hold.resize(reply.size)
            except Refusal as refused:
                reply = error(refused.status, str(refused), refused.headers)
            # Cancelled at the end of a shutdown's patience, it is broken off, with a line in the log and no traceback.
            with suppress(asyncio.CancelledError):
                await reply(scope, receive, send)

    async def json_body(self, scope: Scope, receive: Receive, limit: int, default: bytes = b"") -> Any:
        """The value of a body of at most `limit` bytes that is JSON; `default` is in place of an empty one.

        Raises `Invalid` for others, and what `requests.body` raises.
        """
        with self.limits.memory.hold(scope["purgatory.client"]) as hold:
            text = await requests.body(receive, requests.Headers(scope), limit, hold)
            try:
                if len(text) <= SMALL:
                    return json.loads(text or default)
                # One of these in an iteration of the loop: some take 30 ms, which all others would wait for.
                async with self._parsing:
                    value = json.loads(text)
                    await asyncio.sleep(0)
                    return value
            except (ValueError, RecursionError):
                raise errors.Invalid("the body must be JSON") from None

    @abstractmethod
    async def answer(self, scope: Scope, receive: Receive) -> Response:
        """The response to a request. Raises the reason of a refusal."""

    def refusal(self, exception: Exception) -> Response | None:
        """The response for the reason of a refusal; `None` for other exceptions."""
        return refuse(exception)


def check_method(scope: Scope, *methods: str) -> None:
    """Raise `Refusal` unless the request has one of these methods."""
    if scope["method"] not in methods:
        allow = (b"allow", ", ".join(methods).encode())
        raise Refusal(405, f"method {scope['method']} is not allowed", [allow])


def refuse(exception: Exception) -> Reply | None:
    """The response for the reason of a refusal; `None` for other exceptions."""
    if isinstance(exception, errors.StreamClosed):
        return error(
            409, str(exception), [(b"stream-closed", b"true"), (b"stream-next-offset", encode(exception.tail).encode())]
        )
    if isinstance(exception, errors.StaleEpoch):
        return error(403, str(exception), [(b"producer-epoch", b"%d" % exception.epoch)])
    if isinstance(exception, errors.SequenceGap):
        expected = (b"producer-expected-seq", b"%d" % exception.expected)
        return error(409, str(exception), [expected, (b"producer-received-seq", b"%d" % exception.received)])
    status = _STATUS.get(type(exception))
    if status is not None:
        return error(status, str(exception))
    if isinstance(exception, Refusal):
        return error(exception.status, str(exception), exception.headers)
    if isinstance(exception, StorageUnavailable):
        # The database's own words, which may have addresses, are for the log.
        what = "does not answer: the change may be stored, or may not" if exception.may_be_stored else "is away"
        return error(503, f"the database {what}", [RETRY])
    if isinstance(exception, StorageError):
        return error(500, str(exception))
    if isinstance(exception, (PurgatoryFull, PurgatoryClosed)):
        reason = "is shutting down" if isinstance(exception, PurgatoryClosed) else "has too many waiting requests"
        return error(503, f"the server {reason}", [RETRY])
    return None
