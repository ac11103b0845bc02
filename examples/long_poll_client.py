"""Follow a topic of the long-poll server through failures of the server and of the network. The file is to be copied.

    python -m examples.long_poll_client http://127.0.0.1:8000 news [--offset N]

prints its messages as JSON, one a line. It needs httpx and tenacity: `pip install 'asyncio-purgatory[client]'`.
"""

import argparse
import asyncio
import json
import logging
import math
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

import httpx
from tenacity import AsyncRetrying, before_sleep_log, retry_if_exception
from tenacity.wait import wait_exception, wait_exponential, wait_random_exponential

logger = logging.getLogger(__name__)

FIRST_DELAY = 0.1
"""Seconds. The first retry comes after so long at the most, each further one after twice as long, up to a maximum."""

GRACE = 10.0
"""Seconds that an answer may take beyond what the server was asked to wait. A connection is lost then."""

MAX_RETRY_AFTER = 3600.0
"""Seconds. A longer `Retry-After` is cut to this."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a topic."""

    offset: int
    value: Any


async def follow(
    url: str, topic: str, offset: int = 0, *, wait: float = 30.0, max_delay: float = 30.0
) -> AsyncGenerator[Message]:
    """Yield the messages of `topic` from `offset` on, each once and in order, and wait for more, for ever.

    A program that is to go on after a handled message another time stores its `offset + 1`.

    `wait` is the number of seconds that the server is asked to hold a poll. Temporary failures are tried again:
    connections that fail or break off, timeouts, garbled answers, and the status codes 429 and 5xx. The retries come
    more and more slowly, each after between half and the whole of `FIRST_DELAY`, then of twice that, and so on up to
    `max_delay` seconds, and after `Retry-After` if the server sends it. They are logged as warnings. As the offset
    moves only with whole answers, a server that dies and comes back costs no message and repeats none.

    Raises `httpx.HTTPStatusError`, with the server's words as a note, for every other status code that is no success;
    `httpx.UnsupportedProtocol` or `httpx.InvalidURL` for a wrong `url`; `ValueError` if `wait` or `max_delay` is not
    more than 0 and finite, and for an answer that is no JSON, or not of the long-poll server's kind.

    A topic that is shorter than `offset`, perhaps as the server has lost its data, is followed as any other: nothing
    comes until it has grown past `offset`.
    """
    if not (0 < wait < math.inf and 0 < max_delay < math.inf):
        raise ValueError(f"wait and max_delay must be more than 0 and finite, not {wait!r} and {max_delay!r}")
    # A server may hold polls for somewhat longer than it was asked to, so that not all come back at once.
    timeout = httpx.Timeout(GRACE, read=1.25 * wait + GRACE)
    path = f"/topics/{quote(topic, safe='')}/messages"
    retrying = AsyncRetrying(
        retry=retry_if_exception(_may_pass),
        wait=wait_exponential(FIRST_DELAY / 2, max_delay / 2)
        + wait_random_exponential(FIRST_DELAY / 2, max_delay / 2)
        + wait_exception(_retry_after),
        before_sleep=before_sleep_log(logger, logging.WARNING),
    )
    async with httpx.AsyncClient(base_url=url, timeout=timeout) as client:
        while True:
            for message in _messages(await retrying(_fetch, client, path, {"offset": offset, "wait": wait})):
                offset = message.offset + 1
                yield message


async def _fetch(client: httpx.AsyncClient, path: str, parameters: dict[str, float]) -> Any:
    response = await client.get(path, params=parameters)
    if not response.is_success:
        try:
            response.raise_for_status()
        except httpx.HTTPStatusError as error:
            error.add_note(response.text[:1000])
            raise
    return response.json()


def _messages(answer: Any) -> list[Message]:
    try:
        return [Message(int(message["offset"]), message["value"]) for message in answer["messages"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"this is no answer of a long-poll server: {str(answer)[:100]}") from error


def _may_pass(exception: BaseException) -> bool:
    """Whether the failure is temporary."""
    if isinstance(exception, httpx.HTTPStatusError):
        return exception.response.status_code == 429 or exception.response.is_server_error
    return isinstance(exception, (httpx.TransportError, httpx.DecodingError)) and not isinstance(
        exception, httpx.UnsupportedProtocol
    )


def _retry_after(exception: BaseException) -> float:
    """The seconds of `Retry-After`, which has a number or a date; 0.0 without it."""
    if not isinstance(exception, httpx.HTTPStatusError):
        return 0.0
    text = exception.response.headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), MAX_RETRY_AFTER)
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return 0.0
    seconds = (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)


async def _print(url: str, topic: str, offset: int) -> None:
    async with aclosing(follow(url, topic, offset)) as messages:
        async for message in messages:
            print(json.dumps(asdict(message)), flush=True)


def main() -> None:
    """Print until interrupted."""
    parser = argparse.ArgumentParser("long_poll_client", description="Follow a topic of the long-poll server.")
    parser.add_argument("url", help="the server's URL, such as http://127.0.0.1:8000")
    parser.add_argument("topic")
    parser.add_argument("--offset", type=int, default=0, metavar="N", help="the first offset (default: 0)")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        asyncio.run(_print(options.url, options.topic, options.offset))
    except KeyboardInterrupt:
        sys.exit(130)
    except httpx.HTTPStatusError as error:
        sys.exit(f"{error.response.status_code}: {error.response.text}")
    except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        sys.exit(f"{options.url}: {error}")


if __name__ == "__main__":
    main()
