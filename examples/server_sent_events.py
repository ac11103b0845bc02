"""Each open page must show a change at once, and go on where it was when its connection breaks.

Server-sent events do that: the browser reconnects and sends the id of the last event it has seen.
Here an open page takes no task. Open http://127.0.0.1:8000/ twice, or follow with `curl -N`.

    python -m purgatory.uvicorn examples.server_sent_events:app
    curl -N http://127.0.0.1:8000/events
    curl -d 'The kettle is on' http://127.0.0.1:8000/notes
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypedDict

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.asgi import Event, EventStream, closing_on_shutdown

MAX_STREAMS = 100_000
HEARTBEAT = 15.0  # seconds

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Notes</title>
<form><input name="note" aria-label="Note" required> <button>Add</button></form>
<ul></ul>
<script>
  const form = document.querySelector("form");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    fetch("notes", { method: "POST", body: form.note.value });
    form.reset();
  });
  new EventSource("events").addEventListener("message", ({ data }) => {
    const item = document.createElement("li");
    item.textContent = data;
    document.querySelector("ul").append(item);
  });
</script>
"""


class State(TypedDict):
    notes: list[Event]
    purgatory: DelayedOperationPurgatory


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[State]:
    purgatory = DelayedOperationPurgatory("notes")
    async with closing_on_shutdown(purgatory):  # ends the streams when shutdown begins
        yield {"notes": [], "purgatory": purgatory}


async def page(request: Request) -> Response:
    return HTMLResponse(PAGE)


async def add(request: Request) -> Response:
    notes: list[Event] = request.state.notes
    text = (await request.body()).decode(errors="replace")
    notes.append(Event(text, id=str(len(notes) + 1)))  # change the state first,
    request.state.purgatory.check_and_complete_soon("notes")  # then check its key
    return JSONResponse({"id": len(notes)}, 201)


async def events(request: Request) -> Response:
    # The stream keeps what `follow` refers to, so that is not the whole request.
    notes: list[Event] = request.state.notes
    purgatory: DelayedOperationPurgatory = request.state.purgatory
    if purgatory.num_delayed >= MAX_STREAMS:  # before the stream begins, because it begins with a 200
        return JSONResponse({"error": "too many streams"}, 503, {"Retry-After": "1"})
    last = request.headers.get("last-event-id", "0")
    try:
        is_known = 0 <= int(last) <= len(notes)
    except ValueError:
        is_known = False

    def follow(last_event_id: str | None) -> DelayedOperation[list[Event]]:
        seen = int(last_event_id or "0")
        return purgatory.wait_for(lambda: notes[seen:], "notes", timeout=HEARTBEAT)

    # With `key`, events that many streams send in the same moment are encoded once.
    # An id that is not known is older than the server's start, so the client gets all notes.
    return EventStream(follow, list, last if is_known else None, key=tuple)


app = Starlette(
    routes=[Route("/", page), Route("/notes", add, methods=["POST"]), Route("/events", events)],
    lifespan=lifespan,
)
