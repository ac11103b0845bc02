"""The journal, the metrics and the health of a server, for its operator."""

import asyncio
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest
from starlette.types import Message

from purgatory.streams.admission import Budget, Refusal
from purgatory.streams.http.requests import Headers, body
from tests.streams.processes import append, create, metric, poll, running, until_waiting
from tests.streams.serving import serving
from tests.streams.test_command import refused

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])


async def test_the_journal_has_each_read_that_has_waited_with_its_outcome(tmp_path: Path) -> None:
    data, journal = str(tmp_path / "data"), str(tmp_path / "journal")
    with serving(data=data, journal=journal, instance="here", append_rate=0.1, long_poll_timeout=0.3) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            await create(client, "news")
            assert await poll(client, "news") == ""  # the deadline
            await append(client, "news", "x")
            assert await metric(client, 'purgatory_operations_total{outcome="expired",purgatory="read"}') == 1
            assert await metric(client, 'purgatory_journal_dropped_rows_total{instance="here"}') == 0
            assert (await client.get("/health")).json() == {"status": "ok", "instance": "here", "streams": 1}
    rows = pq.read_table(tmp_path / "journal").to_pylist()
    found = [(row["instance"], row["purgatory"], row["operation"], row["outcome"]) for row in rows]
    assert ("here", "read", "Read", "expired") in found


async def test_a_journal_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot use" in refused("--data", str(tmp_path), "--journal", str(tmp_path / "file"))


async def test_shutdown_answers_all_that_wait(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        async with server.client() as client:
            await create(client, "news")
            polls = [asyncio.create_task(poll(client, "news")) for _ in range(20)]
            await until_waiting(client, 20)
            stopping = asyncio.create_task(asyncio.to_thread(server.stop))
            assert await asyncio.gather(*polls) == [""] * 20
            assert await stopping == 0


async def test_shutdown_answers_a_client_of_which_the_body_does_not_come(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        head = b"POST /v1/stream/news HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        stopping = asyncio.create_task(asyncio.to_thread(server.stop))
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"the server is shutting down" in answer
        assert await stopping == 0


async def test_body_that_is_cancelled_is_refused() -> None:
    async def receive() -> Message:
        never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        return await never

    reading = asyncio.create_task(body(receive, Headers({"headers": []}), 10, Budget(80).hold("a")))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(Refusal, match="the server is shutting down") as caught:
        await reading
    assert caught.value.status == 503
