"""What a fetch is answered with. A long answer is read from the log as fast as its client takes it.

A client that asks for much and reads nothing must not cost the server what it has asked for: uvicorn takes a part only
when nearly all before it is on its way, and the next page is read only then.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from examples.long_poll_server.store import PAGE_BYTES, Store, StoreUnavailable

MAX_RESPONSE_BYTES = 8 * 1024 * 1024

NOT_KEPT = {"Cache-Control": "no-store"}
"""What a poll is answered is of no use to others, and browsers hold back a poll while they await an answer to keep."""


class PagedResponse(StreamingResponse):
    """A streaming response that ends when it is cancelled.

    uvicorn cancels those that are not done a second after shutdown has begun. Of each it logs a line, that it is not
    complete, and not a traceback.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(asyncio.CancelledError):
            await super().__call__(scope, receive, send)


def whole(messages: str, next_offset: int) -> Response:
    """The answer with these messages, a JSON array."""
    content = f'{{"messages":{messages},"next_offset":{next_offset}}}'
    return Response(content, headers=NOT_KEPT, media_type="application/json")


async def messages(log: Store, topic: str, offset: int, end: int, limit: int, known: str = "") -> Response:
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
        answer = whole(page, next_offset)
    else:
        answer = PagedResponse(
            _parts(log, topic, page, next_offset, end), headers=NOT_KEPT, media_type="application/json"
        )
    answer.headers["ETag"] = tag
    return answer


async def _parts(log: Store, topic: str, page: str, offset: int, end: int) -> AsyncIterator[str]:
    page = f'{{"messages":{page[:-1]}'
    size = 0
    while page:
        size += len(page)
        # A single message may be long.
        for begin in range(0, len(page), PAGE_BYTES):
            yield page[begin : begin + PAGE_BYTES]
        page = ""  # let it go before there is another
        if offset < end and size <= MAX_RESPONSE_BYTES:
            with suppress(StoreUnavailable):  # then it is cut short here
                page, offset = await log.read(topic, offset, end, end - offset)
                page = page[1:-1] and f",{page[1:-1]}"
    yield f'],"next_offset":{offset}}}'
