"""The long poll behind uvicorn, and in tests of a user's own."""

import asyncio

from starlette.testclient import TestClient

from examples.long_poll.app import app
from tests.asgi.processes import serving


async def test_request_waits_until_a_message_is_published() -> None:
    with serving("purgatory.uvicorn", "--port", "0", "examples.long_poll.app:app") as server:
        async with server.client() as client:
            poll = asyncio.create_task(client.get("/topics/news", params={"offset": 0}))
            await asyncio.wait([poll], timeout=0.1)
            assert not poll.done()
            assert (await client.post("/topics/news", content="hello")).json() == {"offset": 0}
            assert (await poll).json() == {"messages": ["hello"], "next_offset": 1}


async def test_event_stream_goes_on_where_it_was_left() -> None:
    with serving("purgatory.uvicorn", "--port", "0", "examples.long_poll.app:app") as server:
        async with server.client() as client:
            for message in ("a", "b", "c"):
                await client.post("/topics/news", content=message)
            async with client.stream("GET", "/topics/news/events", headers={"Last-Event-ID": "1"}) as stream:
                lines = stream.aiter_lines()
                read = [await anext(lines) for _ in range(6)]
                await client.post("/topics/news", content="d")
                read += [await anext(lines) for _ in range(3)]
            assert read == ["id: 2", "data:b", "", "id: 3", "data:c", "", "id: 4", "data:d", ""]
            assert (await client.get("/topics/news/events", headers={"Last-Event-ID": "x"})).status_code == 400


async def test_disconnect_leaves_no_traceback() -> None:
    with serving("purgatory.uvicorn", "--port", "0", "examples.long_poll.app:app") as server:
        async with server.client() as client:
            poll = asyncio.create_task(client.get("/topics/news", params={"offset": 0}))
            await asyncio.wait([poll], timeout=0.3)
            poll.cancel()
            await asyncio.wait([poll])
            assert (await client.post("/topics/news", content="hello")).status_code == 201
        server.process.terminate()
        assert "Traceback" not in await server.end()


def test_each_client_starts_the_application_anew() -> None:
    for _ in range(2):
        with TestClient(app) as client:
            assert client.post("/topics/news", content="hello").json() == {"offset": 0}
            assert client.get("/topics/news", params={"wait": 0}).json()["messages"] == ["hello"]
            assert client.get("/topics/news", params={"offset": 1, "wait": 0}).json()["messages"] == []


def test_wrong_parameters_are_refused() -> None:
    with TestClient(app) as client:
        for parameters in ({"offset": "x"}, {"wait": "-1"}, {"wait": "nan"}):
            assert client.get("/topics/news", params=parameters).status_code == 400


def test_full_purgatory_is_answered_with_503() -> None:
    with TestClient(app) as client:
        client.app_state["purgatory"].close()
        answer = client.get("/topics/news", params={"offset": 0})
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
