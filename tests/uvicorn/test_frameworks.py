"""Starlette and Quart, on servers that park requests and on others; and real clients."""

import asyncio
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import aiohttp
import httpx
import pytest

from purgatory import DelayedOperationPurgatory
from tests.asgi.processes import serving
from tests.support.paths import ROOT
from tests.support.servers import program
from tests.uvicorn import frameworks
from tests.uvicorn.serving import connected
from tests.uvicorn.serving import serving as serving_here

COMMANDS = [
    ["purgatory.uvicorn", "--port", "0", "tests.uvicorn.frameworks:starlette"],
    ["uvicorn", "--port", "0", "tests.uvicorn.frameworks:starlette"],
    ["uvicorn", "--port", "0", "--http", "h11", "tests.uvicorn.frameworks:starlette"],
    ["hypercorn", "--bind", "127.0.0.1:0", "tests.uvicorn.frameworks:quart"],
]


@pytest.fixture(autouse=True)
def new_purgatory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A purgatory belongs to one event loop, and each test has its own."""
    monkeypatch.setattr(frameworks, "purgatory", DelayedOperationPurgatory())


@pytest.mark.parametrize("framework", ["starlette", "quart"])
async def test_requests_are_parked(framework: str) -> None:
    app = getattr(frameworks, framework)
    async with serving_here(app, lifespan="off") as server, connected(server) as one, connected(server) as other:
        await one.send("GET", "/wait")
        await other.send("GET", "/events")
        await server.until("QuietConnection", "QuietConnection")
        await server.until_no_task()
        assert frameworks.purgatory.complete_all() == 2
        assert (await one.receive()).body == b'"gone"'
        assert b"id: 1\ndata:gone\n\n" in await other.until(b"0\r\n\r\n")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_answers_are_the_same_on_each_server(command: list[str]) -> None:
    with serving(*command) as server:
        async with server.client() as client, server.client() as other:
            waiting = [asyncio.create_task(client.get(path)) for path in ("/wait", "/events")]
            while (await other.post("/go")).json() != 0 or not all(task.done() for task in waiting):
                await asyncio.sleep(0.02)
            answer, stream = [await task for task in waiting]
        assert (answer.status_code, answer.json()) == (200, "gone")
        assert stream.text.replace(":\n\n", "") == "id: 1\ndata:gone\n\n"


async def _go(times: int) -> None:
    """Answer that many requests, one after the other."""
    while times:
        times -= frameworks.purgatory.complete_all()
        await asyncio.sleep(0.01)


async def test_curl_gets_a_response_and_a_stream() -> None:
    async with serving_here(frameworks.starlette, lifespan="off") as server:
        url = f"http://127.0.0.1:{server.port}"
        command = [program("curl", "curl"), "-sN", f"{url}/wait", "-w", "%{http_code}", f"{url}/events"]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        await _go(2)
        output, _ = await process.communicate()
        assert output == b'"gone"200id: 1\ndata:gone\n\n200'


async def test_aiohttp_keeps_the_connection() -> None:
    async with (
        serving_here(frameworks.starlette, lifespan="off") as server,
        aiohttp.ClientSession(f"http://127.0.0.1:{server.port}", connector=aiohttp.TCPConnector(limit=1)) as client,
    ):
        for _ in range(3):
            going = asyncio.create_task(_go(1))
            async with client.get("/wait") as response:
                assert await response.json() == "gone"
            await going
            assert len(server.connections) == 1


@pytest.mark.parametrize("options", [["--workers", "2"], ["--reload"]])
@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_command_line_takes_uvicorns_options(options: list[str], tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(
        "from purgatory import Delay, DelayedOperationPurgatory\n"
        "from purgatory.asgi import DelayedResponse\n"
        "from starlette.responses import JSONResponse\n"
        "purgatory = DelayedOperationPurgatory()\n"
        "async def app(scope, receive, send):\n"
        "    if scope['type'] == 'http':\n"
        "        operation = purgatory.try_complete_else_watch(Delay(0.05), ['x'])\n"
        "        parks = 'purgatory.parking' in scope['extensions']\n"
        "        await DelayedResponse(operation, lambda result: JSONResponse(parks))(scope, receive, send)\n"
    )
    with serving("purgatory.uvicorn", "--port", "0", "--app-dir", str(tmp_path), *options, "app:app") as server:
        async with server.client() as client:
            answer = None
            while answer is None:
                with suppress(httpx.TransportError):  # the workers do not listen yet
                    answer = await client.get("/")
    assert answer.json() is True


def test_script_shows_many_clients_answered_by_one_publish() -> None:
    command = [sys.executable, "-m", "tests.support.parked", "--clients", "300", "--seconds", "0.5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.startswith("poll, 300 clients: ")
    assert "answered within " in done.stdout
