"""A service whose requests wait, with what an operator needs.

python -m examples.production [--journal DIR] [--metrics-port 9100] [--requests N]
"""

import argparse
import asyncio
import gc
import random
from contextlib import AsyncExitStack

from prometheus_client import CollectorRegistry, start_http_server

from purgatory import Delay, DelayedOperationPurgatory, PurgatoryFull
from purgatory.journal import Journal
from purgatory.metrics import JournalCollector, PurgatoryCollector

MAX_PENDING = 10_000
"""Operations that may wait at a time: 300 bytes each here, and as much as a request is to you."""


def tune_collector() -> None:
    """Take what exists by now out of the collector's sight, and have it look at the rest less often.

    To be called when the service is up: a full collection goes through all objects there are.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


async def serve(journal_folder: str, port: int, requests: int) -> None:
    """Serve made-up requests, which wait for up to a tenth of a second."""
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(Journal(journal_folder, instance="service-1"))
        purgatory = await stack.enter_async_context(DelayedOperationPurgatory("requests", max_pending=MAX_PENDING))
        purgatory.add_listener(journal.write)
        registry = CollectorRegistry()
        registry.register(PurgatoryCollector(purgatory))
        registry.register(JournalCollector(journal))
        server, thread = start_http_server(port, "127.0.0.1", registry)
        stack.callback(thread.join)
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        tune_collector()
        print(f"metrics at http://127.0.0.1:{server.server_port}/metrics", flush=True)

        refused = 0
        for number in range(requests):
            try:
                purgatory.try_complete_else_watch(Delay(random.uniform(0.0, 0.1)), [f"client {number % 100}"])
            except PurgatoryFull:
                refused += 1  # answer with 503 and Retry-After: the client comes back
            if number % 100 == 0:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.2)  # the longest wait is over
        statistics = purgatory.statistics()
        print(f"expired {statistics.expired}, refused {refused}, missed {statistics.missed}")
    print(f"rows written: {journal.statistics().rows}")


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser("production", description="A service with metrics, a journal and limits.")
    parser.add_argument("--journal", default="journal", metavar="DIR", help="default: %(default)s")
    parser.add_argument("--metrics-port", type=int, default=9100, help="0 takes a free one (default: 9100)")
    parser.add_argument("--requests", type=int, default=10_000, help="made-up requests (default: 10,000)")
    options = parser.parse_args()
    asyncio.run(serve(options.journal, options.metrics_port, options.requests))


if __name__ == "__main__":
    main()
