"""Print an answer with the official client, from where an earlier run has ended.

python -m examples.llm_tokens.reader http://127.0.0.1:8000/streams/v1/stream/chats/ID offset.txt
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from durable_streams import stream

PAUSE = 1.0
"""Seconds between attempts, when the server is away."""


def follow(url: str, offset: str = "-1") -> Iterator[tuple[list[dict[str, Any]], str]]:
    """Yield each message once, several at a time, with the offset behind them, until the answer ends."""
    while True:
        try:
            with stream(url, offset=offset, live="sse") as events:  # the server ends it after a minute
                for event in events.iter_events(mode="json"):
                    offset = event.next_offset
                    yield event.data, offset
                    if any("done" in message for message in event.data):
                        return
        except httpx.TransportError:
            time.sleep(PAUSE)


if __name__ == "__main__":
    place = Path(sys.argv[2])
    for messages, offset in follow(sys.argv[1], place.read_text() if place.exists() else "-1"):
        print("".join(message.get("token", "\n") for message in messages), end="", flush=True)
        new = place.with_suffix(".new")
        new.write_text(offset)
        new.replace(place)  # all of it or nothing, whenever this is killed
