"""A process of clients that wait, each on a connection of its own, for one message after the other.

Each looks whether it gets its message, the whole of it and nothing else. Their counts are printed as JSON.
"""

import argparse
import asyncio
import gc
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import aiohttp
import uvloop

from examples.long_poll_server.load.server import raise_file_limit, session

WAIT = 300
"""Seconds that a client waits for a message. Should it take longer, it is lost."""


@dataclass
class Seen:
    """The counts of the clients."""

    latencies: list[list[float]] = field(default_factory=list)
    """For each message that a client was to get: seconds from when it was published until all of it was there."""
    lost: int = 0
    """Answers without the message, or with another."""


def value(topic: str, offset: int) -> dict[str, str | int | float]:
    """To be published in `topic` now, as the message at `offset`."""
    return {"topic": topic, "offset": offset, "at": time.monotonic()}


async def receive(client: aiohttp.ClientSession, topic: str, offset: int) -> float | None:
    """Wait for the message. Returns the seconds since it was published, or `None` if it is not what has come."""
    async with client.get(f"/topics/{topic}/messages", params={"offset": offset, "wait": WAIT}) as response:
        answer = await response.json()
    now = time.monotonic()
    messages = answer["messages"]
    if len(messages) != 1 or answer["next_offset"] != offset + 1 or messages[0]["offset"] != offset:
        return None
    published = messages[0]["value"]
    if (published["topic"], published["offset"]) != (topic, offset):
        return None
    return now - float(published["at"])


async def wait(url: str, source: str, topics: Sequence[str], messages: int) -> Seen:
    """A client for each of `topics`, which wait for so many messages."""
    seen = Seen([[] for _ in range(messages)])

    async def follow(client: aiohttp.ClientSession, topic: str) -> None:
        for offset in range(messages):
            latency = await receive(client, topic, offset)
            if latency is None:
                seen.lost += 1
            else:
                seen.latencies[offset].append(latency)

    async with session(url, source) as client, asyncio.TaskGroup() as group:
        for topic in topics:
            group.create_task(follow(client, topic))
    return seen


def main() -> None:
    """Wait as the options say."""
    parser = argparse.ArgumentParser("long_poll_server.load.waiting", description="Clients that wait for messages.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--source", default="127.0.0.1", help="the address that they come from (default: 127.0.0.1)")
    parser.add_argument("--messages", type=int, default=1, help="that each waits for (default: 1)")
    parser.add_argument("topics", nargs="+", help="TOPIC:CLIENTS")
    options = parser.parse_args()
    raise_file_limit()
    gc.disable()  # a collection goes through ten thousand clients, and would be taken for the server's time
    topics = [
        name for name, _, clients in (each.partition(":") for each in options.topics) for _ in range(int(clients))
    ]
    print(json.dumps(asdict(uvloop.run(wait(options.url, options.source, topics, options.messages)))))


if __name__ == "__main__":
    main()
