"""The steps of the tutorial are servers; step 5 has tests of its own, which run with these."""

import asyncio
import re
import textwrap
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from examples.tutorial.step_5 import *  # noqa: F403
from tests.asgi.processes import Server, serving
from tests.support.paths import ROOT

FOLDER = ROOT / "examples" / "tutorial"
NEWS = "/topics/news"


def test_page_shows_code_of_the_programs() -> None:
    programs = [step.read_text() for step in FOLDER.glob("step_*.py")]
    blocks = re.findall(r"^```python\n(.*?)^```", (FOLDER / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    for block in blocks:
        assert any(block in program or textwrap.indent(block, "    ") in program for program in programs), block
    assert len(blocks) >= 7


@pytest.fixture(params=[1, 2, 3, 4])
def step(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture
def server(step: int) -> Iterator[Server]:
    module = "purgatory.uvicorn" if step == 4 else "uvicorn"
    with serving(module, "--port", "0", f"examples.tutorial.step_{step}:app") as process:
        yield process


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=60.0) as client:
        yield client


@pytest.mark.asyncio(loop_factories=["asyncio"])
class TestStep:
    async def test_answers_with_what_is_there_and_with_what_comes(self, http: httpx.AsyncClient) -> None:
        poll = asyncio.create_task(http.get(NEWS))
        await http.post(NEWS, params={"text": "hello"})
        assert (await poll).json() == ["hello"]
        poll = asyncio.create_task(http.get(NEWS, params={"after": 1}))
        for _ in range(3):  # the poll has come before the last of these
            await http.post("/topics/weather", params={"text": "rain"})
        await http.post(NEWS, params={"text": "world"})
        assert (await poll).json() == ["world"]

    @pytest.mark.parametrize("step", [3, 4], indirect=True)
    async def test_answers_without_messages_at_the_deadline(self, http: httpx.AsyncClient) -> None:
        assert (await http.get(NEWS, params={"wait": 0.05})).json() == []
        assert (await http.get(NEWS, params={"wait": 61})).status_code == 422

    @pytest.mark.parametrize("step", [4], indirect=True)
    async def test_shutdown_answers_those_who_wait(self, http: httpx.AsyncClient, server: Server) -> None:
        host, _, port = server.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {NEWS} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        for _ in range(3):  # the server has taken what came before these
            await http.get(NEWS, params={"wait": 0})
        server.process.terminate()
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert answer.endswith(b"[]")
        writer.close()
