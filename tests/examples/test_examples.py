"""The small examples: real processes, real sockets, a real browser."""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import httpx
import pytest
from selenium.webdriver.common.by import By
from starlette.testclient import TestClient

from examples import job_status
from examples.blocking_queries.app import app as blocking_queries
from examples.idle_connections.server import EchoServer
from tests.asgi.processes import Server, serving
from tests.streams import processes as streams
from tests.support.browser import browser
from tests.support.operations import turn
from tests.support.paths import ROOT
from tests.support.servers import RedisServer, reserved_port


def example(*arguments: str) -> "subprocess.Popen[str]":
    """Start a program of `examples/`."""
    command = [sys.executable, "-m", f"examples.{arguments[0]}", *arguments[1:]]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


class TestIdleConnections:
    def test_silent_connection_is_closed_and_not_too_early(self) -> None:
        with example("idle_connections", "--port", "0", "--timeout", "0.5") as process:
            try:
                address, _, _ = read_line(process).removeprefix("listening on ").partition(";")
                host, _, port = address.partition(":")
                began = time.monotonic()
                with socket.create_connection((host, int(port)), 60) as client:
                    client.sendall(b"x")
                    assert (client.recv(9), client.recv(9)) == (b"x", b"")
                assert time.monotonic() - began >= 0.5
                process.send_signal(signal.SIGTERM)
                told, _ = process.communicate(timeout=60)
            finally:
                process.kill()
        assert told == "connections open 0, closed because they were silent 1\n"
        assert process.returncode == 0

    async def test_a_client_that_leaves_is_forgotten_and_one_that_does_not_read_is_disconnected(self) -> None:
        # Long enough for the client that leaves to have left before.
        async with EchoServer(1.0, "127.0.0.1", 0) as server:
            _, flooding = await asyncio.open_connection(*server.address)
            _, leaving = await asyncio.open_connection(*server.address)
            while len(server.idle) < 2:
                await turn()
            leaving.close()
            while len(server.idle) != 1:
                await turn()
            cast(asyncio.Transport, flooding.transport).pause_reading()
            flooding.write(b"x" * 50_000_000)
            while server.closed == 0:
                for connection in server.idle:
                    assert connection.transport.get_write_buffer_size() < 1_000_000, "it is not read any further"
                await turn()
            assert (server.closed, len(server.idle)) == (1, 0)
            flooding.transport.abort()

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            (("--timeout", "0"), "--timeout must be more than 0 and finite, not 0.0"),
            (("--port", "99999"), "--port must be from 0 to 65535, not 99999"),
            (("--host", "192.0.2.1"), "cannot listen on 192.0.2.1:"),
        ],
    )
    def test_wrong_options_are_refused_in_a_line(self, arguments: tuple[str, str], error: str) -> None:
        with example("idle_connections", *arguments) as refused:
            _, errors = refused.communicate(timeout=60)
        assert refused.returncode != 0
        assert error in errors
        assert "Traceback" not in errors


def test_blocking_query_yields_the_value_at_its_deadline_and_wrong_parameters_are_refused() -> None:
    """Behind a server: `tests/end_to_end/test_uvicorn.py`."""
    with TestClient(blocking_queries) as client:
        assert client.get("/", params={"index": 0, "wait": 0}).json() == {"index": 0, "value": ""}
        for parameters in ({"index": "x"}, {"index": "0", "wait": "-1"}):
            assert client.get("/", params=parameters).status_code == 400


class TestJobStatus:
    @pytest.mark.parametrize("command", ["purgatory.uvicorn", "uvicorn"])
    def test_request_that_waits_is_answered_at_the_end_of_the_job(self, command: str) -> None:
        with serving(command, "--port", "0", "examples.job_status:app") as server:
            job = httpx.post(f"{server.url}/jobs").json()["id"]
            assert httpx.get(f"{server.url}/jobs/{job}").json() == {"state": "running", "result": None}
            answer = httpx.get(f"{server.url}/jobs/{job}", params={"wait": 60}, timeout=60)
            assert answer.json() == {"state": "done", "result": "a report"}

    def test_failed_job_is_told_and_forgotten_in_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def fail() -> str:
            raise ValueError("no paper")

        monkeypatch.setattr(job_status, "make_report", fail)
        monkeypatch.setattr(job_status, "KEPT", 0.3)
        with TestClient(job_status.app) as client:
            job = client.post("/jobs").json()["id"]
            answer = client.get(f"/jobs/{job}", params={"wait": 60})
            assert answer.json() == {"state": "failed", "result": "no paper"}
            while client.get(f"/jobs/{job}").status_code != 404:
                pass
            assert client.get(f"/jobs/{job}", params={"wait": 301}).status_code == 422


class TestServerSentEvents:
    @pytest.fixture
    def server(self) -> Iterator[Server]:
        with serving("purgatory.uvicorn", "--port", "0", "examples.server_sent_events:app") as server:
            yield server

    def test_stream_goes_on_after_the_last_event_and_ends_at_shutdown(self, server: Server) -> None:
        for note in ("one", "two"):
            httpx.post(f"{server.url}/notes", content=note)
        for last, first in (("1", "2"), ("7", "1"), ("x", "1")):  # the last two are not known
            with httpx.stream("GET", f"{server.url}/events", headers={"Last-Event-ID": last}) as stream:
                assert f"id: {first}" in next(stream.iter_text())
        with httpx.stream("GET", f"{server.url}/events", headers={"Last-Event-ID": "2"}) as stream:
            httpx.post(f"{server.url}/notes", content="three")
            text = stream.iter_text()
            assert "data:three" in next(text)
            server.process.terminate()
            assert "data" not in "".join(text)

    def test_page_shows_what_comes(self, server: Server, tmp_path: Path) -> None:
        httpx.post(f"{server.url}/notes", content="from elsewhere")
        with browser(tmp_path) as chrome:
            chrome.get(server.url)
            chrome.find_element(By.NAME, "note").send_keys("from here")
            chrome.find_element(By.TAG_NAME, "button").click()
            notes: list[str] = []
            while len(notes) < 2:
                notes = [item.text for item in chrome.find_elements(By.TAG_NAME, "li")]
            assert notes == ["from elsewhere", "from here"]


def test_follower_goes_on_over_a_restart_and_ends_with_the_stream(tmp_path: Path) -> None:
    port = str(reserved_port())
    url = f"http://127.0.0.1:{port}/v1/stream/news"
    with streams.running(tmp_path, "--port", port):
        with example("follow_stream", url) as follower:
            _, errors = follower.communicate(timeout=60)
        assert follower.returncode == 1
        assert "404" in errors
        httpx.put(url, headers=streams.TEXT).raise_for_status()
        follower = example("follow_stream", url)
        for text in ("first", "second"):
            httpx.post(url, headers=streams.TEXT, content=text).raise_for_status()
            assert read_line(follower) == f"{text}\n"
    with streams.running(tmp_path, "--port", port):
        httpx.post(url, headers={**streams.TEXT, "Stream-Closed": "true"}, content="last").raise_for_status()
        assert follower.communicate(timeout=60)[0] == "last\n"
    assert follower.returncode == 0


@pytest.mark.parametrize("broker", ["redis", "postgres"])
def test_a_change_of_one_process_completes_the_waits_of_others(
    broker: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server = request.getfixturevalue(broker)
    url = server.url if isinstance(server, RedisServer) else server.dsn()

    def start(action: str) -> "subprocess.Popen[str]":
        return example("several_processes", action, url, "--file", str(tmp_path / "number.sqlite3"), "--timeout", "300")

    with start("wait") as waiting, start("wait") as another:
        for each in (waiting, another):
            assert read_line(each) == "the number is 0\n"
        with start("increase") as increasing:
            assert increasing.communicate()[0] == "the number is 1 now\n"
        assert [each.communicate()[0] for each in (waiting, another)] == ["it has grown to 1\n"] * 2
