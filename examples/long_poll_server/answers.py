"""The answers of fetches. A long answer is read from the log as fast as its client takes it.

A client that asks for much and reads nothing must not cost the server what it has asked for: uvicorn takes a part only
when nearly all before it is on its way, and the next page is read only then.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress

from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from examples.long_poll_server.limits import Held, PendingByClient
from examples.long_poll_server.store import PAGE_BYTES, Store, StoreUnavailable

MAX_RESPONSE_BYTES = 8 * 1024 * 1024

MAX_SENDING_BYTES = 128 * 1024 * 1024
"""Of the pages of all long answers that are being sent."""

NOT_KEPT = {"Cache-Control": "no-store"}
"""The answer of a poll is of no use to others, and browsers hold back a poll while they await an answer to keep."""


class Sending:
    """The long answers that are being sent, until their clients have taken them."""

    def __init__(self, fetching: PendingByClient) -> None:
        """Each counts as one of its client's fetches."""
        self.fetching = fetching
        self.held = Held(MAX_SENDING_BYTES, "the server sends as many long answers as it may")


class PagedResponse(StreamingResponse):
    """JSON in pages, of which one at a time is in memory. Refused with a 429 or a 503 if too much is being sent.

    It ends when it is cancelled: uvicorn cancels those that are not done a second after shutdown has begun. Of each it
    logs a line, that it is not complete, and not a traceback. Where it cannot go on, the connection is broken off, so
    that it is not taken for whole.
    """

    def __init__(self, sending: Sending, first: str, following: AsyncIterator[str] | None = None) -> None:
        self._open = self._parts(first, following)
        super().__init__(self._open, headers=NOT_KEPT, media_type="application/json")
        self._sending = sending
        self._size = len(first)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client, _ = scope["client"] or ("", 0)
        async with aclosing(self._open):  # lets go of its page now, and not when garbage is collected
            with self._sending.fetching.one_more(client), self._sending.held.some() as self._hold:
                self._hold(self._size)  # refused before anything is sent
                with suppress(asyncio.CancelledError, StoreUnavailable, HTTPException):
                    await super().__call__(scope, receive, send)

    async def _parts(self, page: str, following: AsyncIterator[str] | None) -> AsyncGenerator[str, None]:
        # A single message may be long.
        for begin in range(0, len(page), PAGE_BYTES):
            yield page[begin : begin + PAGE_BYTES]
        page = ""  # let it go before there is another
        if following is not None:
            async for page in following:
                self._hold(len(page))
                for begin in range(0, len(page), PAGE_BYTES):
                    yield page[begin : begin + PAGE_BYTES]
                page = ""


def whole(sending: Sending, messages: str, next_offset: int) -> Response:
    """The answer with these messages, a JSON array."""
    content = f'{{"messages":{messages},"next_offset":{next_offset}}}'
    if len(content) > PAGE_BYTES:
        return PagedResponse(sending, content)
    return Response(content, headers=NOT_KEPT, media_type="application/json")


async def messages(
    sending: Sending, log: Store, topic: str, offset: int, end: int, limit: int, known: str = ""
) -> Response:
    """The answer with up to `limit` messages from `offset` to before `end`, or a 304 if its ETag is `known`.

    One of more than 8 MiB is cut short after the message, or the page, that makes it so.
    """
    end = max(offset, min(end, offset + limit))
    # The messages at these offsets are never others.
    tag = f'"{log.incarnation}-{offset}-{end}"'
    tags = {part.strip().removeprefix("W/") for part in known.split(",")}
    if tag in tags or "*" in tags:
        return Response(status_code=304, headers={"ETag": tag, **NOT_KEPT})
    page, next_offset = await log.read(topic, offset, end, limit)
    if next_offset >= end:
        answer = whole(sending, page, next_offset)
    else:
        following = _following(log, topic, len(page), next_offset, end)
        answer = PagedResponse(sending, f'{{"messages":{page[:-1]}', following)
    answer.headers["ETag"] = tag
    return answer


async def _following(log: Store, topic: str, size: int, offset: int, end: int) -> AsyncIterator[str]:
    """The pages after a first one of that size."""
    while offset < end and size <= MAX_RESPONSE_BYTES:
        page, offset = await log.read(topic, offset, end, end - offset)
        size += len(page)
        if page == "[]":
            break
        page = f",{page[1:-1]}"
        yield page
        page = ""  # let it go before there is another
    yield f'],"next_offset":{offset}}}'
