"""Parked event streams of a real browser. Behind a real nginx they are in tests/streams."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from tests.support.browser import browser
from tests.uvicorn.board import Board
from tests.uvicorn.serving import serving

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

PAGE = """<!doctype html><title>notes</title><ul id="notes"></ul><script>
new EventSource("/events").onmessage = (event) => {
  const note = document.createElement("li");
  note.textContent = event.lastEventId + " " + event.data;
  document.getElementById("notes").append(note);
};
</script>"""


async def page(request: Request) -> Response:
    return HTMLResponse(PAGE)


async def test_event_source_of_a_browser_follows_and_connects_again(tmp_path: Path) -> None:
    board = Board()
    board.app.router.routes.append(Route("/", page))
    board.notes.append("first")
    async with serving(board.app) as server:
        with browser(tmp_path) as chrome:
            await asyncio.to_thread(chrome.get, f"http://127.0.0.1:{server.port}/")

            async def shown(*notes: str) -> None:
                while await asyncio.to_thread(_notes, chrome) != list(notes):
                    await asyncio.sleep(0.02)

            await shown("1 first")
            board.pin("second")
            await shown("1 first", "2 second")
            for connection in list(server.server_state.connections):
                connection.transport.abort()  # as a network that fails
            board.pin("third")
            await shown("1 first", "2 second", "3 third")
            await server.until_no_task()


def _notes(chrome: Any) -> list[str]:
    notes: list[str] = chrome.execute_script(
        "return Array.from(document.querySelectorAll('li'), (item) => item.textContent)"
    )
    return notes
