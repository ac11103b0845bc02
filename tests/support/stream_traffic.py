"""Traffic for a running `purgatory serve`: clients that follow streams by long polls, and writers.

python -m tests.support.stream_traffic [--clients 200] [--appends 40] [--seconds 60]

Each client follows a stream for a while, and then another; few streams are read and written by most.
"""

import argparse
import asyncio
import random
from contextlib import AsyncExitStack, suppress

import httpx

STREAMS = [f"/v1/stream/traffic/{number}" for number in range(1, 21)]
SHARES = [1 / number for number in range(1, 21)]
"""Zipf's law."""
JSON = {"Content-Type": "application/json"}


async def follow(client: httpx.AsyncClient, draw: random.Random) -> None:
    """Follow one stream after the other until cancelled."""
    while True:
        (stream,) = draw.choices(STREAMS, SHARES)
        parameters = {"offset": "now", "live": "long-poll"}
        for _ in range(draw.randrange(1, 20)):
            response = await client.get(stream, params=parameters)
            response.raise_for_status()
            parameters["offset"] = response.headers["Stream-Next-Offset"]
            parameters["cursor"] = response.headers["Stream-Cursor"]


async def append(client: httpx.AsyncClient, draw: random.Random, rate: float) -> None:
    """Append `rate` messages a second on average, at exponential intervals, until cancelled."""
    async with asyncio.TaskGroup() as group:
        while True:
            await asyncio.sleep(draw.expovariate(rate))
            (stream,) = draw.choices(STREAMS, SHARES)
            group.create_task(client.post(stream, content=f"{draw.random():.6f}", headers=JSON))


async def run(url: str, clients: int, appends: float, seconds: float, seed: int) -> None:
    """Make traffic for `seconds`."""
    async with AsyncExitStack() as stack:
        # A connection for each client; httpx gets slow with more than some in a pool.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        pools = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=100, limits=limits))
            for _ in range(clients // 50 + 2)
        ]
        for stream in STREAMS:
            (await pools[-1].put(stream, headers=JSON)).raise_for_status()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                group.create_task(append(pools[-1], random.Random(seed), appends))
                for number in range(clients):
                    group.create_task(follow(pools[number // 50], random.Random(f"{seed}-{number}")))


def main() -> None:
    """Parse the command line and make traffic."""
    parser = argparse.ArgumentParser("stream_traffic", description="Make traffic for a running `purgatory serve`.")
    parser.add_argument("--url", default="http://127.0.0.1:4437")
    parser.add_argument("--clients", type=int, default=200, help="how many follow streams (default: 200)")
    parser.add_argument("--appends", type=float, default=40.0, help="messages a second (default: 40)")
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long (default: 60)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    asyncio.run(run(options.url, options.clients, options.appends, options.seconds, options.seed))


if __name__ == "__main__":
    main()
