"""The blocking queries behind uvicorn, and in tests of a user's own."""

import asyncio

from starlette.testclient import TestClient

from examples.blocking_queries.app import app
from tests.asgi.processes import serving


async def test_query_waits_until_the_index_exceeds_the_one_seen() -> None:
    with serving("purgatory.uvicorn", "--port", "0", "examples.blocking_queries.app:app") as server:
        async with server.client() as client:
            assert (await client.get("/")).json() == {"index": 0, "value": ""}
            query = asyncio.create_task(client.get("/", params={"index": 0}))
            await asyncio.wait([query], timeout=0.1)
            assert not query.done()
            assert (await client.put("/", content="blue")).json() == {"index": 1, "value": "blue"}
            assert (await query).json() == {"index": 1, "value": "blue"}


def test_query_yields_the_value_at_its_deadline_and_wrong_parameters_are_refused() -> None:
    with TestClient(app) as client:
        assert client.get("/", params={"index": 0, "wait": 0}).json() == {"index": 0, "value": ""}
        for parameters in ({"index": "x"}, {"index": "0", "wait": "-1"}):
            assert client.get("/", params=parameters).status_code == 400
