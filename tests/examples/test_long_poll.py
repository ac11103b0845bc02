"""The long poll, in a process of its own, with real clients."""

import asyncio
import random
import re
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

FILE = ROOT / "examples" / "long_poll.py"
NEWS = "/topics/news"


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "messages.sqlite3"
    monkeypatch.setenv("LONG_POLL_DB", str(path))
    return path


@contextmanager
def running(server: str = "purgatory.uvicorn", app: str = "tests.examples.observed_long_poll:app") -> Iterator[Server]:
    with serving(server, "--port", "0", app) as process:
        yield process


async def until_waiting(client: httpx.AsyncClient, *, fetches: int = 0, produces: int = 0) -> dict[str, Any]:
    """Return the statistics when so many requests wait. The time-out of the test is the limit."""
    while True:
        found: dict[str, Any] = (await client.get("/statistics")).json()
        if (found["fetch"]["num_delayed"], found["produce"]["num_delayed"]) == (fetches, produces):
            return found


async def read_all(client: httpx.AsyncClient) -> list[str]:
    messages: list[str] = []
    while page := (await client.get(NEWS, params={"offset": len(messages), "wait": 0})).json()["messages"]:
        messages += page
    return messages


def test_file_has_at_most_150_lines() -> None:
    assert len(FILE.read_text().splitlines()) <= 150


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
        for offset, replica in ((1, "a"), (0, "a"), (0, "b")):  # a has the message, b has not
            await client.get(NEWS, params={"offset": offset, "replica": replica, "wait": 0})
        await until_waiting(client, produces=1)
        follower = asyncio.create_task(client.get(NEWS, params={"offset": 1, "replica": "b"}))
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
                await client.get(NEWS, params={"offset": 2, "replica": "a"})  # refused, and heard
                assert [(await produce).status_code for produce in waiting[:2]] == [201, 201]
                assert (await client.get(NEWS)).json()["messages"] == ["x", "x"]

    async def test_bad_input_is_refused(self, client: httpx.AsyncClient) -> None:
        for given in ("offset=x", "offset=1", "offset=0.0", "wait=nan", "wait=-1"):
            name, _, value = given.partition("=")
            answer = await client.get(NEWS, params={name: value})
            assert (answer.status_code, f"{name} must be" in answer.text) == (400, True)
            assert repr(value) in answer.text

        async def in_chunks() -> AsyncIterator[bytes]:
            yield b"x"

        for parameters, content, status in (
            ({"acks": "101"}, b"x", 400),
            ({"timeout": "inf"}, b"x", 400),
            ({}, b"\xff", 400),
            ({}, b"x" * 65_537, 413),
            ({}, in_chunks(), 413),
        ):
            assert (await client.post(NEWS, params=parameters, content=content)).status_code == status
        await until_waiting(client)
        assert (await client.post(NEWS, content=b"x" * 65_536)).json() == {"offset": 0}

    async def test_second_process_is_refused(self, client: httpx.AsyncClient) -> None:
        command = [sys.executable, "-m", "purgatory.uvicorn", "--port", "0", "examples.long_poll:app"]
        done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, timeout=100)
        assert "database is locked" in done.stderr
        assert done.returncode != 0


def test_commands_of_the_guide_get_the_answers_shown() -> None:
    program("curl", "curl")
    guide = (ROOT / "examples" / "README.md").read_text()
    commands = [line for line in guide.splitlines() if line.startswith("curl ")]
    printed = []
    with running() as server:
        for command, stored in zip(commands, ("hello", "world"), strict=True):
            # The replica may come when its message is stored, and on a busy machine that is not after a second.
            until_stored = f"until curl '{server.url}{NEWS}?wait=0' | grep {stored} >&2; do :; done"
            line = command.replace("http://127.0.0.1:8000", server.url)
            line = line.replace("sleep 1", until_stored if stored == "world" else ":").replace("curl ", "curl -s ")
            done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True, timeout=300)
            printed.append(sorted(done.stdout.replace("}{", "}\n{").splitlines()))
    assert printed[0] == ['{"messages":["hello"],"next_offset":1}', '{"offset":0}']
    assert printed[1] == ['{"messages":[],"next_offset":2}', '{"offset":1}']
    assert all(answer in guide for answer in printed[0])


def test_file_of_the_example_is_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "0")
    with subprocess.Popen([sys.executable, FILE], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            port = next(found[1] for line in process.stderr if (found := re.search(r"running on .*:(\d+) ", line)))
            assert httpx.post(f"http://127.0.0.1:{port}{NEWS}", content="hello", timeout=60).json() == {"offset": 0}
            with socket.create_connection(("127.0.0.1", int(port)), 60) as client:  # its message does not come
                head = f"POST {NEWS} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n"
                client.sendall(head.encode())
                assert client.recv(100).startswith(b"HTTP/1.1 100 ")
                process.terminate()
                process.communicate(timeout=60)
        finally:
            process.kill()
