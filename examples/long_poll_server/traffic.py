"""Some traffic for a server that runs: clients that wait for messages, and publishers.

python -m examples.long_poll_server.traffic [--clients 200] [--publishes 40] [--seconds 60]

Each client follows a topic for a while, by long polling, and then another; few topics are read and written by most.
One publish in five waits for a replica, and one client in ten is one.
"""

import argparse
import asyncio
import random
from contextlib import AsyncExitStack

import httpx

TOPICS = [f"topic-{number}" for number in range(1, 21)]
SHARES = [1 / number for number in range(1, 21)]
"""Zipf's law."""


async def follow(client: httpx.AsyncClient, draw: random.Random, replica: str | None, wait: float) -> None:
    """Follow one topic after the other, for ever."""
    while True:
        (topic,) = draw.choices(TOPICS, SHARES)
        parameters: dict[str, str | float] = {"wait": wait}
        if replica is not None:
            parameters["replica"] = replica
        offset = 0
        for _ in range(draw.randrange(1, 20)):
            offset = (await fetch(client, topic, {**parameters, "offset": offset}))["next_offset"]


async def fetch(client: httpx.AsyncClient, topic: str, parameters: dict[str, str | float]) -> dict[str, int]:
    """The answers of the server."""
    response = await client.get(f"/topics/{topic}/messages", params=parameters)
    response.raise_for_status()
    answer: dict[str, int] = response.json()
    return answer


async def publish(client: httpx.AsyncClient, draw: random.Random, rate: float) -> None:
    """Publish so many messages a second, for ever, at exponential intervals."""
    async with asyncio.TaskGroup() as group:
        while True:
            await asyncio.sleep(draw.expovariate(rate))
            (topic,) = draw.choices(TOPICS, SHARES)
            acks = draw.random() < 0.2
            parameters = {"acks": 1, "timeout": 0.5} if acks else {}
            message = {"value": f"{draw.random():.6f}"}
            group.create_task(client.post(f"/topics/{topic}/messages", params=parameters, json=message))


async def run(url: str, clients: int, publishes: float, seconds: float, wait: float, seed: int) -> None:
    """Make traffic for so many seconds."""
    async with AsyncExitStack() as stack:
        # A connection for each client; httpx gets slow with more than some in a pool.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        pools = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=wait + 30, limits=limits))
            for _ in range(clients // 50 + 2)
        ]
        try:
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                group.create_task(publish(pools[-1], random.Random(seed), publishes))
                for number in range(clients):
                    replica = f"replica-{number}" if number % 10 == 0 else None
                    group.create_task(follow(pools[number // 50], random.Random(f"{seed}-{number}"), replica, wait))
        except TimeoutError:
            print(f"{seconds:g} seconds are over")


def main() -> None:
    """Make the traffic that the options ask for."""
    parser = argparse.ArgumentParser("traffic", description="Some traffic for a long-poll server that runs.")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--clients", type=int, default=200, help="how many wait (default: 200)")
    parser.add_argument("--publishes", type=float, default=40.0, help="messages a second (default: 40)")
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long (default: 60)")
    parser.add_argument("--wait", type=float, default=2.0, help="seconds that a fetch waits (default: 2)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    asyncio.run(run(options.url, options.clients, options.publishes, options.seconds, options.wait, options.seed))


if __name__ == "__main__":
    main()
