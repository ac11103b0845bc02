"""A program must see each part of a stream once and in order, also when the server restarts.

It follows a stream of `purgatory serve`, or of any other Durable Streams server, by long polls.

    python -m examples.follow_stream http://localhost:4437/v1/stream/news
"""

import random
import sys
import time
from collections.abc import Iterator

import httpx

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds between attempts when the server is away


def follow(url: str, offset: str = "-1") -> Iterator[tuple[bytes, str]]:
    """Yield each part of the stream with the offset behind it, from which you can go on later.

    Raises `httpx.HTTPStatusError` if there is no such stream, or it was deleted.
    """
    cursor = ""
    pause = FIRST_PAUSE
    with httpx.Client(timeout=60) as client:
        while True:
            try:
                response = client.get(url, params={"offset": offset, "live": "long-poll", "cursor": cursor})
            except httpx.TransportError:
                response = None
            if response is None or response.status_code in (429, 503):
                requested = float(response.headers.get("Retry-After", 0)) if response is not None else 0.0
                time.sleep(max(requested, pause * random.uniform(0.5, 1.0)))  # clients must not return all at once
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            response.raise_for_status()
            pause = FIRST_PAUSE
            offset = response.headers["Stream-Next-Offset"]
            if response.status_code == 200:  # 204 means that the poll has ended without data
                yield response.content, offset
            if "Stream-Closed" in response.headers:
                return
            cursor = response.headers.get("Stream-Cursor", "")


if __name__ == "__main__":
    for data, _ in follow(sys.argv[1]):
        print(data.decode(errors="replace"), flush=True)
