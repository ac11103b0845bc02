"""A small application: notes on a board, which clients wait for."""

import asyncio
from collections.abc import Callable, Hashable
from typing import Any

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

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
    """The notes, and the application."""

    def __init__(self, *middleware: Middleware) -> None:
        self.notes: list[str] = []
        self.undelivered: list[list[str]] = []
        self.rendered: list[Any] = []
        self.render: Callable[[list[str]], Any] = JSONResponse
        self.key: Callable[[list[str]], Hashable] | None = None
        self.looks: list[Look] = []
        self.purgatory = DelayedOperationPurgatory("board")
        self.app = Starlette(
            routes=[
                Route("/look", self.look, methods=["GET", "POST"]),
                Route("/events", self.events),
                Route("/note", self.note, methods=["POST"]),
                Route("/now", self.now, methods=["GET", "POST"]),
            ],
            middleware=middleware,
        )

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
        timeout = float(request.query_params.get("timeout", "60"))
        look = Look(self, int(request.query_params.get("seen", "0")), timeout)
        self.looks.append(look)
        self.watch(look)
        response = DelayedResponse(look, self._render, key=self.key)
        if "background" in request.query_params:
            response.background = BackgroundTask(lambda: None)
        return response

    def _render(self, notes: list[str]) -> Any:
        self.rendered.append(notes)
        return self.render(notes)

    async def events(self, request: Request) -> Response:
        """Follow the notes."""
        timeout = float(request.query_params.get("timeout", "60"))

        def follow(last_event_id: str | None) -> Look | None:
            if "end" in self.notes:
                return None
            look = Look(self, int(last_event_id or 0), timeout)
            self.looks.append(look)
            return self.watch(look)

        return EventStream(follow, self._to_events, request.headers.get("last-event-id"), key=self.key)

    def _to_events(self, notes: list[str]) -> list[Event]:
        self.rendered.append(notes)
        first = len(self.notes) - len(notes) + 1
        return [Event(note, id=str(first + number)) for number, note in enumerate(notes)]

    async def note(self, request: Request) -> Response:
        """Pin a note."""
        self.pin((await request.body()).decode())
        return JSONResponse(len(self.notes))

    async def now(self, request: Request) -> Response:
        """Answer at once."""
        return PlainTextResponse(f"now {len(await request.body())}")
