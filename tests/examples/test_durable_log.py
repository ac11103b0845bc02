"""The durable log, in a process of its own, with real clients."""

import asyncio
import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.asgi.processes import Server, serving
from tests.support.paths import ROOT
from tests.support.servers import program

NEWS = "/topics/news"


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "messages.sqlite3"
    monkeypatch.setenv("DURABLE_LOG", str(path))
    return path


@contextmanager
def running(server: str = "purgatory.uvicorn") -> Iterator[Server]:
    with serving(server, "--port", "0", "tests.examples.observed_durable_log:app") as process:
        yield process


async def until_waiting(client: httpx.AsyncClient, *, fetches: int = 0, produces: int = 0) -> dict[str, Any]:
    """Return the statistics when so many requests wait. The timeout of the test is the limit."""
    while True:
        found: dict[str, Any] = (await client.get("/statistics")).json()
        if (found["fetch"]["num_delayed"], found["produce"]["num_delayed"]) == (fetches, produces):
            return found


async def read_all(client: httpx.AsyncClient) -> list[str]:
    messages: list[str] = []
    while page := (await client.get(NEWS, params={"offset": len(messages), "wait": 0})).json()["messages"]:
        messages += page
    return messages


@pytest.mark.asyncio(loop_factories=["asyncio"])
class TestServer:
    @pytest.fixture
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client of a server of its own."""
        with running() as server:
            async with server.client() as client:
                yield client

    async def test_fetch_waits_for_a_message_and_has_a_hundred_at_most(self, client: httpx.AsyncClient) -> None:
        fetch = asyncio.create_task(client.get(NEWS, params={"offset": 0}))
        expired = await client.get(NEWS, params={"wait": 0.01})
        assert (expired.status_code, expired.json()) == (200, {"messages": [], "next_offset": 0})
        assert not fetch.done()
        produced = await client.post(NEWS, params={"timeout": 300}, content="hello")
        assert (produced.status_code, produced.json()) == (201, {"offset": 0})
        assert (await fetch).json() == {"messages": ["hello"], "next_offset": 1}
        texts = [str(number) for number in range(101)]
        for text in texts:
            await client.post("/topics/pages", content=text)
        page = (await client.get("/topics/pages", params={"offset": 0})).json()
        assert page == {"messages": texts[:100], "next_offset": 100}

    async def test_produce_waits_for_its_replicas(self, client: httpx.AsyncClient) -> None:
        produce = asyncio.create_task(client.post(NEWS, params={"acks": 2, "timeout": 300}, content="hello"))
        while not await read_all(client):
            assert not produce.done()
        for end, replica in ((1, "a"), (0, "a"), (0, "b")):  # a has the message, b has not
            answer = await client.post(f"{NEWS}/replicas/{replica}", params={"end": end})
            assert answer.status_code == 204
        await until_waiting(client, produces=1)
        follower = asyncio.create_task(client.get(NEWS, params={"offset": 1}))
        await client.post(f"{NEWS}/replicas/b", params={"end": 1})
        answer = await produce
        assert (answer.status_code, answer.json()) == (201, {"offset": 0})
        late = await client.post(NEWS, params={"acks": 1, "timeout": 0.01}, content="more")
        assert (late.status_code, late.json()["offset"]) == (504, 1)
        assert (await follower).json() == {"messages": ["more"], "next_offset": 2}

    @pytest.mark.parametrize("command", ["purgatory.uvicorn", "uvicorn"])
    async def test_clients_that_disconnect_leave_nothing(self, command: str) -> None:
        with running(command) as server:
            address = urlsplit(server.url)
            async with server.client() as client, server.client() as leaving:
                waiting = [asyncio.create_task(leaving.get(NEWS)) for _ in range(3)]
                waiting.append(asyncio.create_task(leaving.post("/topics/x", params={"acks": 1}, content="x")))
                with socket.create_connection((address.hostname, address.port)) as sending:
                    sending.sendall(b"POST /topics/x HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
                    await until_waiting(client, fetches=3, produces=2)
                for request in waiting:
                    request.cancel()
                found = await until_waiting(client)
                assert (found["fetch"]["cancelled"], found["produce"]["cancelled"]) == (3, 2)
            server.process.terminate()
            assert "Traceback" not in await server.end()

    @pytest.mark.parametrize("command", ["purgatory.uvicorn", "uvicorn"])
    async def test_shutdown_answers_all_that_wait(self, command: str) -> None:
        with running(command) as server:
            async with server.client() as client:
                fetches = [asyncio.create_task(client.get("/topics/x", params={"wait": 300})) for _ in range(20)]
                parameters = {"acks": 1, "timeout": 300}
                produces = [asyncio.create_task(client.post(NEWS, params=parameters, content="x")) for _ in range(20)]
                await until_waiting(client, fetches=20, produces=20)
                server.process.send_signal(signal.SIGTERM)
                assert {(await fetch).text for fetch in fetches} == {'{"messages":[],"next_offset":0}'}
                answers = [await produce for produce in produces]
                assert {answer.status_code for answer in answers} == {504}
                offsets = sorted(answer.json()["offset"] for answer in answers)
            assert "Traceback" not in await server.end()
        with running(command) as server:
            async with server.client() as client:
                assert offsets == list(range(20)) == list(range(len(await read_all(client))))

    async def test_killed_server_loses_no_acknowledged_message(self) -> None:
        acknowledged: dict[int, str] = {}
        for life in range(3):
            with running() as server:
                async with server.client() as client:

                    async def produce(name: str, client: httpx.AsyncClient = client) -> None:
                        for number in range(1_000_000):
                            answer = await client.post(NEWS, content=f"{name} {number}")
                            acknowledged[answer.json()["offset"]] = f"{name} {number}"

                    before = len(acknowledged)
                    producers = [asyncio.create_task(produce(f"{life} {number}")) for number in range(5)]
                    least = before + random.randrange(1, 100)
                    while len(acknowledged) < least:
                        await asyncio.wait(producers, timeout=0.001)
                    server.process.kill()
                    ends = await asyncio.gather(*producers, return_exceptions=True)
                    assert all(isinstance(end, httpx.TransportError) for end in ends), ends
        with running() as server:
            async with server.client() as client:
                messages = await read_all(client)
        assert {offset: messages[offset] for offset in acknowledged} == acknowledged
        assert len(messages) <= len(acknowledged) + 3 * 5  # and those of which the answer was under way

    async def test_full_purgatory_refuses_and_stores_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MAX_PENDING", "2")
        with running() as server:
            async with server.client() as client:
                parameters = {"acks": 1, "timeout": 300}
                waiting = [asyncio.create_task(client.post(NEWS, params=parameters, content="x")) for _ in range(2)]
                waiting += [asyncio.create_task(client.get("/topics/x")) for _ in range(2)]
                await until_waiting(client, fetches=2, produces=2)
                while (await client.get(NEWS)).json().get("messages") != ["x", "x"]:  # neither is stored at first
                    pass
                for answer in (await client.get("/topics/x"), await client.post(NEWS, content="refused")):
                    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
                    assert answer.json() == {"error": "too many requests wait"}
                await client.post(f"{NEWS}/replicas/a", params={"end": 2})
                assert [(await produce).status_code for produce in waiting[:2]] == [201, 201]
                assert (await client.get(NEWS)).json()["messages"] == ["x", "x"]

    async def test_bad_input_is_refused(self, client: httpx.AsyncClient) -> None:
        for given in ("offset=x", "offset=1", "offset=0.0", "wait=nan", "wait=-1"):
            name, _, value = given.partition("=")
            answer = await client.get(NEWS, params={name: value})
            assert answer.status_code == 400
            assert answer.json()["error"].startswith(f"{name} must be")
            assert repr(value) in answer.json()["error"]

        async def in_chunks() -> AsyncIterator[bytes]:
            yield b"x"

        for parameters, content, status in (
            ({"acks": "101"}, b"x", 400),
            ({"timeout": "inf"}, b"x", 400),
            ({}, b"\xff", 400),
            ({}, b"x" * 65_537, 413),
        ):
            answer = await client.post(NEWS, params=parameters, content=content)
            assert (answer.status_code, list(answer.json())) == (status, ["error"])
        for method, path, status in (
            ("POST", f"{NEWS}/replicas/a", 404),
            ("DELETE", NEWS, 405),
            ("GET", "/x", 404),
        ):
            answer = await client.request(method, path)
            assert (answer.status_code, list(answer.json())) == (status, ["error"])
        await until_waiting(client)
        assert (await client.post(NEWS, content=b"x" * 65_536)).json() == {"offset": 0}
        assert (await client.post(NEWS, content=in_chunks())).json() == {"offset": 1}
        for number in range(100):
            await client.post(f"{NEWS}/replicas/{number}")
        statuses = [(await client.post(f"{NEWS}/replicas/{name}")).status_code for name in ("0", "another")]
        assert statuses == [204, 409]

    async def test_second_process_is_refused(self, client: httpx.AsyncClient) -> None:
        command = [sys.executable, "-m", "purgatory.uvicorn", "--port", "0", "examples.durable_log:app"]
        done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, timeout=100)
        assert "database is locked" in done.stderr
        assert done.returncode != 0


def test_commands_of_the_guide_get_the_answers_shown() -> None:
    program("curl", "curl")
    guide = (ROOT / "examples" / "durable_log.md").read_text()
    commands = [line.replace("curl ", "curl -s ") for line in guide.splitlines() if line.startswith("curl ")]
    with running() as server:
        # A fetch may come when its message is stored, and on a busy machine that is not after a second.
        wait = f"until curl '{server.url}{NEWS}?wait=0' | grep hello >&2; do :; done"
        script = "\n".join(commands).replace("sleep 1", wait).replace("http://127.0.0.1:8000", server.url)
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=300)
    answers = done.stdout.replace("}{", "}\n{").splitlines()
    assert sorted(answers) == ['{"messages":["hello"],"next_offset":1}', '{"offset":0}']
    assert all(answer in guide for answer in answers)
