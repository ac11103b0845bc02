"""The same small application in three frameworks: clients wait for 300 seconds, and `/state` tells how many do."""

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI
from quart import Quart
from quart import request as quart_request
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from purgatory import Delay, DelayedOperationPurgatory
from purgatory.asgi import (
    ClientDisconnected,
    DelayedInScope,
    DelayedResponse,
    Event,
    EventStream,
    closing_on_shutdown,
    parking_statistics,
    unless_disconnected,
)

purgatory = DelayedOperationPurgatory()
stuck = DelayedOperationPurgatory()


def _wait() -> Delay:
    return purgatory.try_complete_else_watch(Delay(300.0), ["poll"])


def _delayed() -> DelayedResponse[None]:
    return DelayedResponse(_wait(), lambda _: JSONResponse("answered"))


def _events() -> EventStream[None]:
    return EventStream(lambda _: _wait(), lambda _: [Event("answered")])


def _state() -> dict[str, int]:
    num_delayed = purgatory.num_delayed + stuck.num_delayed
    return {"pid": os.getpid(), "num_delayed": num_delayed, "not_parked": parking_statistics().not_parked}


@asynccontextmanager
async def _lifespan(app: object) -> AsyncIterator[None]:
    async with closing_on_shutdown(purgatory):
        yield


async def poll(request: Request) -> Response:
    with suppress(ClientDisconnected):
        await unless_disconnected(request.receive, _wait())
    return JSONResponse("answered")


async def delayed(request: Request) -> Response:
    return _delayed()


async def events(request: Request) -> Response:
    return _events()


async def state(request: Request) -> Response:
    return JSONResponse(_state())


async def complete(request: Request) -> Response:
    return JSONResponse(purgatory.complete_all())


async def does_not_end(request: Request) -> Response:
    """A response that does not end when shutdown begins."""
    await stuck.try_complete_else_watch(Delay(300.0), ["stuck"])
    return JSONResponse("answered")


async def _hand_on(request: Request, call_next: RequestResponseEndpoint) -> Response:
    return await call_next(request)


HANDLERS = [poll, delayed, events, state, complete, does_not_end]
ROUTES = [Route(f"/{handler.__name__}", handler) for handler in HANDLERS]
BASE = [Middleware(BaseHTTPMiddleware, dispatch=_hand_on)] * 2
starlette = Starlette(routes=ROUTES, lifespan=_lifespan)
middleware = Starlette(routes=ROUTES, lifespan=_lifespan, middleware=BASE)
fastapi = FastAPI(lifespan=_lifespan)
for handler in HANDLERS:
    fastapi.get(f"/{handler.__name__}", response_model=None)(handler)


quart = Quart(__name__)
quart.asgi_app = DelayedInScope(quart.asgi_app)  # type: ignore[method-assign]


@quart.while_serving
async def quart_lifespan() -> AsyncGenerator[None]:
    async with closing_on_shutdown(purgatory):
        yield


@quart.get("/poll")
async def quart_poll() -> str:
    await _wait()  # at a disconnect Quart cancels the task, and with it the operation
    return '"answered"'


@quart.get("/delayed")
async def quart_delayed() -> str:
    quart_request.scope["delayed"] = _delayed()  # type: ignore[typeddict-unknown-key]
    return ""


@quart.get("/events")
async def quart_events() -> str:
    quart_request.scope["delayed"] = _events()  # type: ignore[typeddict-unknown-key]
    return ""


@quart.get("/state")
async def quart_state() -> dict[str, int]:
    return _state()
