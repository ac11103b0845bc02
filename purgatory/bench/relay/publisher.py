"""Publishes changes at a steady rate: `python -P publisher.py URL MESSAGES KEYS SECONDS PROCESSES`.

It imports nothing else of the benchmark, because the library may be another checkout's.
"""

import asyncio
import json
import sys
from contextlib import AsyncExitStack

from purgatory import relay


async def publish(broker: relay.Broker, messages: int, keys: int, seconds: int, processes: int) -> None:
    """Publish `messages` a second with `keys` each, which `processes` hear, all of them but one in here."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(broker.connect(len)) for _ in range(processes - 1)]
        listening = [asyncio.ensure_future(each.listen()) for each in connections]
        began, sent, total = loop.time(), 0, messages * seconds
        while sent < total:
            # What is due at the same time would come from several processes.
            due = min(total, int((loop.time() - began) * messages) + 1)
            payloads = [json.dumps({"keys": [f"key-{n * keys + i}" for i in range(keys)]}) for n in range(sent, due)]
            await connections[0].publish(payloads)
            sent = due
            await asyncio.sleep(began + sent / messages - loop.time())
        for task in listening:
            task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)


def broker(url: str) -> relay.Broker:
    """Return the broker of that URL; without one, a broker between threads."""
    if not url:
        return relay.ThreadBroker()
    return (relay.RedisBroker if url.startswith("redis:") else relay.PostgresBroker)(url)


if __name__ == "__main__":
    asyncio.run(publish(broker(sys.argv[1]), *map(int, sys.argv[2:])))
