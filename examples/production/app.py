"""The long poll in production: with metrics, a journal, and a garbage collector that holds nothing up."""

import gc
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from examples import long_poll
from purgatory.journal import Journal
from purgatory.metrics import JournalCollector, ParkingCollector, PurgatoryCollector

JOURNAL = os.environ.get("JOURNAL", "journal")  # a directory
INSTANCE = os.environ.get("INSTANCE", "web-1")  # names this process in the journal


class State(long_poll.State):
    registry: CollectorRegistry


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[State]:
    # The purgatory closes before the journal, which therefore gets the last rows.
    async with Journal(JOURNAL, instance=INSTANCE) as journal, long_poll.lifespan(app) as state:
        state["purgatory"].add_listener(journal.write)
        registry = CollectorRegistry()
        registry.register(PurgatoryCollector(state["purgatory"]))
        registry.register(JournalCollector(journal))
        registry.register(ParkingCollector())
        tune_collector()
        yield {**state, "registry": registry}


def tune_collector() -> None:
    """Collect garbage more rarely, and never again among the objects that exist now."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


async def metrics(request: Request) -> Response:
    return Response(generate_latest(request.state.registry), media_type=CONTENT_TYPE_LATEST)


app = Starlette(
    routes=[*long_poll.app.routes, Route("/metrics", metrics)],
    exception_handlers=long_poll.app.exception_handlers,
    lifespan=lifespan,
)
