"""Synchronous handlers of FastAPI, which run in threads, on real servers."""

import asyncio
import re

import pytest

from tests.asgi.processes import serving

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

APP = "tests.asgi.sync_handlers:app"
UVICORN = ["uvicorn", "--port", "0"]

WRONG = {
    "check": "check_and_complete_threadsafe()",
    "check_soon": "check_and_complete_threadsafe()",
    "advance": "advance_threadsafe()",
    "advance_soon": "advance_threadsafe()",
    "force": "loop.call_soon_threadsafe(operation.force_complete)",
    "cancel": "loop.call_soon_threadsafe(operation.cancel)",
    "reschedule": "loop.call_soon_threadsafe(operation.reschedule, timeout)",
    "cancel_for_key": "loop.call_soon_threadsafe(purgatory.cancel_for_key, key)",
    "complete_all": "loop.call_soon_threadsafe(purgatory.complete_all)",
    "cancel_all": "loop.call_soon_threadsafe(purgatory.cancel_all)",
    "close": "loop.call_soon_threadsafe(purgatory.close)",
}
"""Wrong calls, and the right ones."""
WATCH = "loop.call_soon_threadsafe(purgatory.try_complete_else_watch, operation, keys)"


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
            refused = await client.post("/wrong/watch")
            assert refused.status_code == 500
        server.process.terminate()
        assert WATCH in await server.end()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_wrong_calls_are_errors_that_name_the_right_ones(loop: str) -> None:
    with serving(*UVICORN, "--loop", loop, APP) as server:
        ending = asyncio.create_task(server.end())  # reads the log meanwhile, which is more than a pipe holds
        async with server.client() as client:
            poll = asyncio.create_task(client.get("/messages?offset=0"))
            reach = asyncio.create_task(client.get("/index?above=0"))
            await server.until_waiting(2)
            for call in WRONG:
                async with server.client() as another:  # uvicorn closes the connection after such an error
                    assert (await another.post(f"/wrong/{call}")).status_code == 500
            assert not poll.done()
            assert not reach.done()
            await client.post("/messages?text=hello")
            await client.post("/index?value=1")
            assert ((await poll).json(), (await reach).json()) == (["hello"], 1)
        server.process.terminate()
        output = await ending
    errors = re.findall(r"^purgatory\.PurgatoryMisuse: .* use (.*)$", output, re.MULTILINE)
    assert errors == list(WRONG.values())
