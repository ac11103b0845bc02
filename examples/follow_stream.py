"""Follow a stream of a Durable Streams server by long polls, over restarts of the server.

python -m examples.follow_stream http://localhost:4437/v1/stream/news
"""

import sys
import time
from collections.abc import Iterator

import httpx

PAUSE = 1.0
"""Seconds between attempts, when the server is away."""


def follow(url: str, offset: str = "-1") -> Iterator[tuple[bytes, str]]:
    """Each part of the stream once and in order, with the offset behind it: keep that, to go on from there.

    Raises `httpx.HTTPStatusError` if the stream is not there, or deleted.
    """
    cursor = ""
    with httpx.Client(timeout=60) as client:
        while True:
            try:
                response = client.get(url, params={"offset": offset, "live": "long-poll", "cursor": cursor})
            except httpx.TransportError:
                time.sleep(PAUSE)
                continue
            if response.status_code in (429, 503):
                time.sleep(float(response.headers.get("Retry-After", PAUSE)))
                continue
            response.raise_for_status()
            offset = response.headers["Stream-Next-Offset"]
            if response.status_code == 200:  # and 204 when the time of the poll is over
                yield response.content, offset
            if "Stream-Closed" in response.headers:
                return
            cursor = response.headers.get("Stream-Cursor", "")


if __name__ == "__main__":
    for data, _ in follow(sys.argv[1]):
        print(data.decode(errors="replace"), flush=True)
