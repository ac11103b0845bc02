"""The same small application in three frameworks: `/poll` waits for 300 seconds, `/state` tells how many wait."""

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from fastapi import FastAPI, Request
from quart import Quart
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from purgatory import Delay, DelayedOperationPurgatory
from purgatory.asgi import ClientDisconnected, DelayedResponse, closing_on_shutdown, unless_disconnected

purgatory = DelayedOperationPurgatory()
stuck = DelayedOperationPurgatory()


def _wait() -> Delay:
    return purgatory.try_complete_else_watch(Delay(300.0), ["poll"])


def _state() -> dict[str, int]:
    return {"pid": os.getpid(), "num_delayed": purgatory.num_delayed + stuck.num_delayed}


@asynccontextmanager
async def _lifespan(app: object) -> AsyncIterator[None]:
    async with closing_on_shutdown(purgatory):
        yield


async def _poll(request: Request) -> Response:
    await unless_disconnected(request.receive, _wait())
    return JSONResponse("answered")


async def _delayed(request: Request) -> Response:
    response = DelayedResponse(_wait(), lambda _: JSONResponse("answered"))
    return cast("Response", response)  # Starlette takes any ASGI application


async def _complete(request: Request) -> Response:
    return JSONResponse(purgatory.complete_all())


async def _stuck(request: Request) -> Response:
    """A response that does not end when shutdown begins."""
    await stuck.try_complete_else_watch(Delay(300.0), ["stuck"])
    return JSONResponse("answered")


async def _show(request: Request) -> Response:
    return JSONResponse(_state())


async def _gone(request: Request, exception: Any) -> Response:
    return Response(status_code=499)


async def _hand_on(request: Request, call_next: RequestResponseEndpoint) -> Response:
    return await call_next(request)


ROUTES = [
    Route("/poll", _poll),
    Route("/complete", _complete, methods=["POST"]),
    Route("/stuck", _stuck),
    Route("/state", _show),
]
HANDLERS: dict[int | type[Exception], Any] = {ClientDisconnected: _gone}
starlette = Starlette(routes=ROUTES, exception_handlers=HANDLERS, lifespan=_lifespan)
without_handlers = Starlette(routes=[Route("/poll", _delayed), Route("/state", _show)], lifespan=_lifespan)
middleware = Starlette(
    routes=ROUTES,
    exception_handlers=HANDLERS,
    lifespan=_lifespan,
    middleware=[Middleware(BaseHTTPMiddleware, dispatch=_hand_on)] * 2,
)

fastapi = FastAPI(exception_handlers=HANDLERS, lifespan=_lifespan)


@fastapi.get("/poll")
async def fastapi_poll(request: Request) -> str:
    await unless_disconnected(request.receive, _wait())
    return "answered"


@fastapi.get("/state")
async def fastapi_state() -> dict[str, int]:
    return _state()


quart = Quart(__name__)


@quart.while_serving
async def quart_lifespan() -> AsyncGenerator[None]:
    async with closing_on_shutdown(purgatory):
        yield


@quart.get("/poll")
async def quart_poll() -> str:
    await _wait()  # at a disconnect Quart cancels the task, and with it the operation
    return '"answered"'


@quart.get("/state")
async def quart_state() -> dict[str, int]:
    return _state()
