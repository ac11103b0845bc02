"""The long poll on real servers, and the application of `examples/production`, which adds to it."""

import asyncio
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from tests.asgi.processes import serving
from tests.support.paths import ROOT
from tests.support.servers import reserved_port

GUIDE = ROOT / "examples" / "long_poll.md"
NEWS = "/topics/news"
APP = ("--port", "0", "examples.production.app:app")
LONGEST = {"wait": 300}


@pytest.fixture(autouse=True)
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JOURNAL", str(tmp_path / "journal"))
    return tmp_path / "journal"


def test_file_has_at_most_90_lines() -> None:
    assert len((ROOT / "examples" / "long_poll.py").read_text().splitlines()) <= 90


async def until_waiting(client: httpx.AsyncClient, count: int) -> str:
    """Return the metrics when `count` requests wait. The timeout of the test is the limit."""
    while True:
        metrics = (await client.get("/metrics")).text
        if f'purgatory_delayed_operations{{purgatory="fetch"}} {count}.0\n' in metrics:
            return metrics


def test_clients_loop_of_the_guide_goes_on_while_the_server_is_away() -> None:
    (code,) = re.findall(r"^```python\n(import random.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(code, names)
    port = str(reserved_port())
    messages = names["follow"](f"http://127.0.0.1:{port}{NEWS}")
    with ThreadPoolExecutor() as thread:
        first = thread.submit(next, messages)  # before the server
        with serving("purgatory.uvicorn", "--port", port, "examples.long_poll:app") as server:
            for message in ("one", "two"):
                httpx.post(f"{server.url}{NEWS}", content=message)
            assert [first.result(), next(messages)] == ["one", "two"]
    messages.close()


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.parametrize("command", ["purgatory.uvicorn", "uvicorn"])
async def test_message_deadline_disconnect_and_shutdown(command: str, journal: Path) -> None:
    with serving(command, *APP) as server:
        async with server.client() as client, server.client() as leaving:
            fetches = [asyncio.create_task(client.get(NEWS, params=LONGEST)) for _ in range(3)]
            await until_waiting(client, 3)
            expired = await client.get(NEWS, params={"wait": 0.01})
            assert expired.json() == {"messages": [], "next_offset": 0}
            assert (await client.post(NEWS, content="hello")).json() == {"offset": 0}
            for fetch in fetches:
                assert (await fetch).json() == {"messages": ["hello"], "next_offset": 1}
            left = asyncio.create_task(leaving.get("/topics/x", params=LONGEST))
            await until_waiting(client, 1)
            left.cancel()
            metrics = await until_waiting(client, 0)
            assert 'purgatory_operations_total{outcome="cancelled",purgatory="fetch"} 1.0' in metrics
            assert "purgatory_journal_dropped_rows_total" in metrics
            last = asyncio.create_task(client.get(NEWS, params={"offset": 1, **LONGEST}))
            await until_waiting(client, 1)
            server.process.send_signal(signal.SIGTERM)
            assert (await last).json() == {"messages": [], "next_offset": 1}
        assert "Traceback" not in await server.end()
    outcomes = sorted(pq.read_table(journal).column("outcome").to_pylist())
    assert outcomes == ["cancelled", "closed", "expired", "satisfied", "satisfied", "satisfied"]
