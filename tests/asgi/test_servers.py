"""Starlette, FastAPI and Quart, on servers that park requests and on others: real processes, real signals."""

import asyncio
import signal

import httpx
import pytest

from tests.asgi.processes import serving

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

# Without `purgatory.asgi` the shutdown of these servers would wait for all pending requests.
UVICORN = ["uvicorn", "--port", "0", "--loop", "asyncio"]
HYPERCORN = ["hypercorn", "--bind", "127.0.0.1:0", "--workers", "0", "--graceful-timeout", "300", "--keep-alive", "75"]
PARKING = ["purgatory.uvicorn", "--port", "0"]


@pytest.mark.parametrize(
    "command",
    [
        ["uvicorn", "--port", "0", "--loop", "uvloop", "tests.asgi.apps:starlette"],
        [*UVICORN, "--workers", "2", "tests.asgi.apps:starlette"],
        [*UVICORN, "--http", "h11", "tests.asgi.apps:middleware"],
        [*UVICORN, "tests.asgi.apps:fastapi"],
        [*HYPERCORN, "tests.asgi.apps:quart"],
        [*HYPERCORN, "--worker-class", "uvloop", "tests.asgi.apps:fastapi"],
        [*PARKING, "--workers", "2", "tests.asgi.apps:starlette"],
        [*PARKING, "--reload", "--reload-dir", "tests/asgi", "tests.asgi.apps:fastapi"],
        [*PARKING, "tests.asgi.apps:quart"],
    ],
    ids=lambda command: " ".join(command).replace("tests.asgi.apps:", ""),
)
async def test_a_client_that_goes_is_dropped_and_others_are_answered_when_shutdown_begins(command: list[str]) -> None:
    with serving(*command) as server:
        async with server.client() as client:
            await server.until_waiting(0)
            paths = ["/poll", "/delayed", "/events"]
            gone, waiting = ([asyncio.create_task(client.get(path)) for path in paths] for _ in range(2))
            states = await server.until_waiting(6)
            if command[0] == "purgatory.uvicorn":
                assert not any(state["not_parked"] for state in states)
            for request in gone:
                request.cancel()
            await server.until_waiting(3)
            server.process.send_signal(signal.SIGTERM)
            answers = await asyncio.gather(*waiting)
        assert [answer.status_code for answer in answers] == [200] * 3
        assert [answer.text for answer in answers] == ['"answered"', '"answered"', "data:answered\n\n"]
        assert "Traceback" not in await server.end()


async def test_second_sigint_is_left_to_the_server() -> None:
    with serving(*UVICORN, "tests.asgi.apps:starlette") as server:
        async with server.client() as client:
            poll = asyncio.create_task(client.get("/poll"))
            stuck = asyncio.create_task(client.get("/does_not_end"))
            await server.until_waiting(2)
            server.process.send_signal(signal.SIGINT)
            assert (await poll).json() == "answered"
            assert not stuck.done()
            server.process.send_signal(signal.SIGINT)
            await server.end()
            await asyncio.wait([stuck])


async def test_a_connection_lasts_for_any_number_of_polls() -> None:
    with serving(*UVICORN, "tests.asgi.apps:middleware") as server:
        limits = httpx.Limits(max_connections=1)
        async with server.client() as client, httpx.AsyncClient(base_url=server.url, limits=limits) as poller:
            for _ in range(20):
                poll = asyncio.create_task(poller.get("/poll", timeout=60))
                while not (await client.get("/complete")).json():
                    pass
                assert (await poll).json() == "answered"
            assert (await client.get("/state")).json()["num_delayed"] == 0
