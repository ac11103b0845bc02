"""A small application: notes on a board, which clients wait for."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Hashable
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.asgi import DelayedResponse, Event, EventStream


class Look(DelayedOperation[list[str]]):
    """Waits until the board has notes after `seen`; yields them."""

    def __init__(self, board: "Board", seen: int, timeout: float | None) -> None:
        super().__init__(timeout)
        self.board = board
        self.seen = seen

    def try_complete(self) -> bool:
        return len(self.board.notes) > self.seen and self.force_complete()

    def on_complete(self) -> list[str]:
        if "fail" in self.board.notes:
            raise ValueError("a bad note")
        return self.board.notes[self.seen :]

    def on_undelivered(self, result: list[str]) -> None:
        self.board.undelivered.append(result)


class Board:
    """The notes, and the application in Starlette, in FastAPI, or mounted in another one."""

    def __init__(self, *middleware: Middleware, kind: str = "starlette") -> None:
        self.notes: list[str] = []
        self.undelivered: list[list[str]] = []
        self.rendered: list[str] = []
        self.render: Callable[[list[str]], Any] = JSONResponse
        self.key: Callable[[list[str]], Hashable] | None = None
        self.looks: list[Look] = []
        self.purgatory = DelayedOperationPurgatory("board")
        self.app: Any
        if kind == "fastapi":
            self.app = FastAPI(middleware=middleware)
            add = partial(self.app.add_api_route, response_model=None)
        else:
            self.app = Starlette(middleware=middleware)
            add = self.app.add_route
        for handler in (self.look, self.events, self.tokens, self.now):
            add(f"/{handler.__name__}", handler, methods=["GET", "POST"])
        if kind == "mounted":
            self.app = Starlette(routes=[Mount("/", self.app)])

    def watch(self, look: Look) -> Look:
        """Hand `look` to the purgatory."""
        return self.purgatory.try_complete_else_watch(look, ["board"])

    def pin(self, note: str) -> int:
        """Pin a note to the board. Returns how many looks that has completed."""
        self.notes.append(note)
        return self.purgatory.check_and_complete("board")

    async def until_waiting(self, count: int) -> None:
        """Return when that many look."""
        while self.purgatory.num_delayed != count:
            await asyncio.sleep(0.005)

    async def look(self, request: Request) -> Response:
        """Wait for notes after `seen`."""
        if request.query_params.get("body") == "read":
            await request.body()
        if "session" in request.scope:
            request.session["seen"] = "1"
        timeout = float(request.query_params.get("timeout", "60"))
        look = Look(self, int(request.query_params.get("seen", "0")), timeout)
        self.looks.append(look)
        self.watch(look)
        response = DelayedResponse(look, self._render, key=self.key)
        if "background" in request.query_params:
            response.background = BackgroundTask(self.rendered.append, "background")
        return response

    def _render(self, notes: list[str]) -> Any:
        self.rendered.append("look")
        return self.render(notes)

    async def events(self, request: Request) -> Response:
        """Follow the notes."""
        timeout = float(request.query_params.get("timeout", "60"))

        def follow(last_event_id: str | None) -> Look | None:
            seen = int(last_event_id or 0)
            if "end" in self.notes[:seen]:
                return None
            look = Look(self, seen, timeout)
            self.looks.append(look)
            return self.watch(look)

        response = EventStream(follow, self._to_events, request.headers.get("last-event-id"), key=self.key)
        if "background" in request.query_params:
            response.background = BackgroundTask(self.rendered.append, "background")
        return response

    def _to_events(self, notes: list[str]) -> list[Event]:
        self.rendered.append("events")
        first = len(self.notes) - len(notes) + 1
        return [Event(note, id=str(first + number)) for number, note in enumerate(notes)]

    async def tokens(self, request: Request) -> Response:
        """Stream what an iterator yields, which does not end."""

        async def generate() -> AsyncGenerator[str, None]:
            yield "one"
            await asyncio.Event().wait()

        return EventStream(generate())

    async def now(self, request: Request) -> Response:
        """Answer at once."""
        return PlainTextResponse(f"now {len(await request.body())}")
