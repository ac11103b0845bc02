"""`python -m purgatory.uvicorn` as a process, with an example as its application and real clients that wait."""

import asyncio
import signal

import pytest

from tests.asgi.processes import serving

CLIENTS = 50
COMMAND = ("purgatory.uvicorn", "--port", "0", "examples.blocking_queries.app:app")


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_clients_wait_for_a_change_or_for_the_shutdown() -> None:
    with serving(*COMMAND) as server:
        async with server.client() as client:

            def ask(index: int) -> "asyncio.Task[dict[str, object]]":
                async def ask() -> dict[str, object]:
                    return (await client.get("/", params={"index": index})).json()  # type: ignore[no-any-return]

                return asyncio.create_task(ask())

            queries = [ask(0) for _ in range(CLIENTS)]
            assert (await client.get("/", params={"index": 0, "wait": 0.01})).json() == {"index": 0, "value": ""}
            assert not any(query.done() for query in queries)
            await client.put("/", content="blue")
            assert await asyncio.gather(*queries) == [{"index": 1, "value": "blue"}] * CLIENTS
            last = ask(1)
            assert (await client.get("/", params={"index": 1, "wait": 0.01})).json() == {"index": 1, "value": "blue"}
            server.process.send_signal(signal.SIGTERM)
            assert await last == {"index": 1, "value": "blue"}
            await server.end()
