"""The same small application in Starlette and in Quart: `/wait` waits for `/go`."""

from typing import Any

from quart import Quart
from quart import request as quart_request
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from purgatory import Delay, DelayedOperationPurgatory
from purgatory.asgi import DelayedResponse, Event, EventStream

purgatory = DelayedOperationPurgatory()


def _render(result: object) -> Response:
    return JSONResponse("gone")


def _wait() -> DelayedResponse[None]:
    return DelayedResponse(purgatory.try_complete_else_watch(Delay(60.0), ["go"]), _render)


def _events() -> EventStream[None]:
    def follow(last_event_id: str | None) -> Delay | None:
        return None if last_event_id else purgatory.try_complete_else_watch(Delay(60.0), ["go"])

    return EventStream(follow, lambda result: [Event("gone", id="1")])


async def _starlette_wait(request: Request) -> Response:
    return _wait()


async def _starlette_go(request: Request) -> Response:
    return JSONResponse(purgatory.complete_all())


async def _starlette_events(request: Request) -> Response:
    return _events()


starlette = Starlette(
    routes=[
        Route("/wait", _starlette_wait),
        Route("/go", _starlette_go, methods=["POST"]),
        Route("/events", _starlette_events),
    ]
)


class Delayed:
    """For a framework whose handlers return no ASGI applications: `scope["delayed"]` answers instead."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def unless_delayed(message: Any) -> None:
            if "delayed" not in scope:
                await send(message)

        await self.app(scope, receive, unless_delayed)
        if "delayed" in scope:
            await scope["delayed"](scope, receive, send)


quart = Quart(__name__)
quart.asgi_app = Delayed(quart.asgi_app)  # type: ignore[method-assign]


@quart.get("/wait")
async def _quart_wait() -> str:
    quart_request.scope["delayed"] = _wait()  # type: ignore[typeddict-unknown-key]
    return ""


@quart.get("/events")
async def _quart_events() -> str:
    quart_request.scope["delayed"] = _events()  # type: ignore[typeddict-unknown-key]
    return ""


@quart.post("/go")
async def _quart_go() -> str:
    return str(purgatory.complete_all())
