"""Parked requests of a real browser, and behind a real nginx."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from tests.support.browser import browser
from tests.support.servers import LOOPBACK, program, reserved_port
from tests.uvicorn.board import Board
from tests.uvicorn.serving import Server, serving

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


NGINX = """
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream parked {{ server 127.0.0.1:{upstream}; keepalive 32; }}
    server {{
        listen {address}:{port};
        location / {{
            proxy_pass http://parked;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }}
    }}
}}
"""


@asynccontextmanager
async def nginx(server: Server, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of nginx, which is before the server."""
    executable = program("nginx", "nginx")
    port = reserved_port()
    configuration = folder / "nginx.conf"
    configuration.write_text(NGINX.format(folder=folder, upstream=server.port, port=port, address=LOOPBACK))
    user = ["-g", "user root;"] if os.geteuid() == 0 else []
    command = [executable, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(configuration), *user]
    limits = httpx.Limits(max_connections=None)
    with subprocess.Popen(command) as process:
        try:
            async with httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}", timeout=60, limits=limits) as client:
                ready = False
                while not ready:
                    with suppress(httpx.TransportError):
                        ready = (await client.get("/now")).status_code == 200
                yield client
        finally:
            process.send_signal(signal.SIGTERM)


async def test_long_polls_and_streams_work_behind_nginx(tmp_path: Path) -> None:
    board = Board()
    async with serving(board.app) as server, nginx(server, tmp_path) as client:
        for turn in range(2):  # the second time on connections that nginx has kept
            looks = [asyncio.create_task(client.get(f"/look?seen={turn}")) for _ in range(50)]
            await board.until_waiting(50)
            await server.until_no_task()
            board.pin("hello")
            assert {(await look).text for look in looks} == {'["hello"]'}
        async with client.stream("GET", "/events", headers={"Last-Event-ID": "2"}) as stream:
            lines = stream.aiter_lines()
            await board.until_waiting(1)
            board.pin("streamed")
            assert [await anext(lines), await anext(lines)] == ["id: 3", "data:streamed"]
        await board.until_waiting(0)
