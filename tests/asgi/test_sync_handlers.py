"""Synchronous handlers of FastAPI, which run in threads, on real servers."""

import asyncio

import pytest

from tests.asgi.processes import serving

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

APP = "tests.asgi.sync_handlers:app"
UVICORN = ["uvicorn", "--port", "0"]


@pytest.mark.parametrize(
    "command",
    [
        [*UVICORN, "--loop", "asyncio", APP],
        [*UVICORN, "--loop", "uvloop", APP],
        ["purgatory.uvicorn", "--port", "0", APP],
    ],
    ids=["asyncio", "uvloop", "parking"],
)
async def test_calls_from_a_synchronous_handler_wake_long_polls(command: list[str]) -> None:
    with serving(*command) as server:
        async with server.client() as client:
            polls = [asyncio.create_task(client.get("/messages?offset=0")) for _ in range(3)]
            polls += [asyncio.create_task(client.get("/index?above=4")) for _ in range(3)]
            await server.until_waiting(6)
            assert (await client.post("/messages?text=hello")).status_code == 200
            assert [(await poll).json() for poll in polls[:3]] == [["hello"]] * 3
            assert (await client.post("/index?value=4")).status_code == 200
            assert not any(poll.done() for poll in polls[3:])
            assert (await client.post("/index?value=7")).status_code == 200
            assert [(await poll).json() for poll in polls[3:]] == [7] * 3
            assert (await client.post("/wrong/advance")).status_code == 500
        server.process.terminate()
        assert "PurgatoryMisuse" in (output := await server.end())
        assert "use advance_threadsafe()" in output
