"""The journal, the metrics and the health of a server, for its operator."""

import asyncio
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest

from tests.streams.processes import append, create, metric, poll, running
from tests.streams.serving import serving

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
