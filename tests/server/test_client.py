"""The client to be copied: a real server that is killed and restarted, and servers that misbehave."""

import asyncio
import json
import logging
import math
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from tenacity import retry, retry_if_exception_type, wait_random

from examples import long_poll_client
from examples.long_poll_client import Message, follow
from tests.support.paths import ROOT
from tests.support.server_process import ServerProcess, fetch, publish, running, until_waiting
from tests.support.servers import free_port

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])


class Reader:
    """Follows a topic in a task of its own, and keeps what it gets."""

    def __init__(self, url: str, topic: str, offset: int = 0) -> None:
        self.messages: list[Message] = []
        self._ended = False
        self._changed = asyncio.Condition()
        self._task = asyncio.create_task(self._read(url, topic, offset))

    async def _read(self, url: str, topic: str, offset: int) -> None:
        try:
            async with aclosing(follow(url, topic, offset, max_delay=0.4)) as messages:
                async for message in messages:
                    self.messages.append(message)
                    async with self._changed:
                        self._changed.notify_all()
        finally:
            self._ended = True
            async with self._changed:
                self._changed.notify_all()

    async def until(self, count: int) -> None:
        """Return when that many messages are there."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._ended or len(self.messages) >= count)
        assert not self._ended

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        assert self._task.cancelled()


async def _publish_for_ever(url: str, name: str, stored: dict[int, str]) -> None:
    """Publish one message after the other, and keep which offset each answer names."""

    @retry(retry=retry_if_exception_type(httpx.HTTPError), wait=wait_random(0, 0.1))
    async def post(value: str) -> int:
        response = await client.post("/topics/news/messages", json={"value": value})
        response.raise_for_status()
        offset: int = response.json()["offset"]
        return offset

    number = 0
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        while True:
            # If an answer is lost, the message may have been stored, and then it is so twice.
            stored[await post(f"{name}-{number}")] = f"{name}-{number}"
            number += 1


@pytest.mark.parametrize("numbers", [[signal.SIGKILL] * 3, [signal.SIGTERM]], ids=["SIGKILL", "SIGTERM"])
async def test_a_server_that_is_stopped_and_restarted_costs_no_message_and_repeats_none(
    tmp_path: Path, numbers: list[signal.Signals]
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    stored: dict[int, str] = {}
    reader = Reader(url, "news")
    publishers = [asyncio.create_task(_publish_for_ever(url, name, stored)) for name in "abc"]
    for number in numbers:
        server = await asyncio.to_thread(ServerProcess, tmp_path, "--port", str(port))
        await reader.until(len(reader.messages) + 100)
        await asyncio.to_thread(server.stop, number)
    with running(tmp_path, "--port", str(port)) as server:
        for publisher in publishers:
            publisher.cancel()
        await asyncio.wait(publishers)
        async with server.client() as client:
            end = await publish(client, "news", "end") + 1
            await reader.until(end)
            await reader.stop()
            values: list[Any] = []
            while len(values) < end:
                values += (await fetch(client, "news", offset=len(values), max_messages=10_000))[0]
    assert reader.messages == [Message(offset, value) for offset, value in enumerate(values)]
    assert {offset: values[offset] for offset in stored} == stored


async def test_client_starts_at_given_offset_and_waits_at_end(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        async with server.client() as client:
            for number in range(5):
                await publish(client, "news", number)
            async with aclosing(follow(server.url, "news", 3)) as messages:
                assert [await anext(messages), await anext(messages)] == [Message(3, 3), Message(4, 4)]
                following = asyncio.ensure_future(anext(messages))
                await until_waiting(client, 1)
                await publish(client, "news", {"new": True})
                assert await following == Message(5, {"new": True})
            await until_waiting(client, 0)


async def test_a_request_that_the_server_refuses_is_an_error_with_its_words(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        with pytest.raises(httpx.HTTPStatusError, match="404 Not Found") as raised:
            await anext(follow(server.url, "no/topic"))
        assert raised.value.__notes__ == ['{"error":"Not Found"}']
        with pytest.raises(httpx.HTTPStatusError, match="400 Bad Request"):
            await anext(follow(server.url, "news?"))
        with pytest.raises(httpx.HTTPStatusError, match="400 Bad Request") as raised:
            await anext(follow(server.url, "news", -1))
        assert "offset must be a whole number" in raised.value.__notes__[0]


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://localhost", "http://[::1"])
async def test_a_wrong_address_is_not_tried_again(url: str) -> None:
    with pytest.raises((httpx.UnsupportedProtocol, httpx.InvalidURL)):
        await anext(follow(url, "news"))


@pytest.mark.parametrize(("wait", "max_delay"), [(0.0, 1.0), (math.inf, 1.0), (1.0, 0.0), (1.0, math.nan)])
async def test_seconds_that_make_no_sense_are_refused(wait: float, max_delay: float) -> None:
    with pytest.raises(ValueError, match="must be more than 0 and finite"):
        await anext(follow("http://127.0.0.1:1", "news", wait=wait, max_delay=max_delay))


class Scripted:
    """A server that answers each connection with the next of some texts and hangs up; with `None` it stays silent."""

    def __init__(self, *answers: str | None) -> None:
        self.answers = [*answers]
        self.arrivals: list[float] = []
        self.requests: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.arrivals.append(asyncio.get_running_loop().time())
        self.requests.append((await reader.readline()).decode())
        answer = self.answers.pop(0)
        if answer is None:
            await reader.read()
        else:
            writer.write(answer.encode())
        writer.close()


@asynccontextmanager
async def _scripted(*answers: str | None) -> AsyncIterator[tuple[str, Scripted]]:
    scripted = Scripted(*answers)
    async with await asyncio.start_server(scripted.serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", scripted


def _answer(status: int, body: str, *headers: str) -> str:
    lines = [f"HTTP/1.1 {status} It", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines) + f"\r\n\r\n{body}"


MESSAGE = _answer(200, '{"messages":[{"offset":7,"value":"x"}],"next_offset":8}')


async def test_a_passing_failure_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_poll_client, "GRACE", 0.2)
    troubles = [
        "",
        "nonsense",
        MESSAGE[:-10],
        _answer(200, "nonsense", "Content-Encoding: gzip"),
        *(_answer(status, "busy", "Retry-After: soon") for status in (429, 500, 502, 503, 504)),
        None,
    ]
    async with (
        _scripted(*troubles, MESSAGE) as (url, server),
        aclosing(follow(url, "news", 7, wait=0.1, max_delay=0.01)) as messages,
    ):
        assert await anext(messages) == Message(7, "x")
    assert server.requests == ["GET /topics/news/messages?offset=7&wait=0.1 HTTP/1.1\r\n"] * (len(troubles) + 1)


@pytest.mark.parametrize(
    "body",
    ["", "[]", "{}", '{"messages":7}', '{"messages":[7]}', '{"messages":[{"offset":0}]}', '{"messages":[{"value":0}]}'],
)
async def test_an_answer_of_another_kind_is_an_error(body: str) -> None:
    async with _scripted(_answer(200, body)) as (url, _):
        with pytest.raises(ValueError, match=r"no answer of a long-poll server|Expecting value"):
            await anext(follow(url, "news"))


async def test_a_server_that_is_away_is_not_asked_busily() -> None:
    async with (
        _scripted(*[""] * 6, MESSAGE) as (url, server),
        aclosing(follow(url, "news", 7, max_delay=0.6)) as messages,
    ):
        await anext(messages)
    pauses = [later - earlier for earlier, later in zip(server.arrivals, server.arrivals[1:], strict=False)]
    assert all(pause >= least for pause, least in zip(pauses, [0.05, 0.1, 0.2, 0.3, 0.3, 0.3], strict=True))


async def test_the_server_says_when_to_come_back() -> None:
    async with (
        _scripted(_answer(503, "", "Retry-After: 1"), MESSAGE) as (url, server),
        aclosing(follow(url, "news", 7)) as messages,
    ):
        await anext(messages)
    assert server.arrivals[1] - server.arrivals[0] >= 1.0


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("0", 0, 0),
        ("120", 120, 120),
        ("9" * 5000, 3600, 3600),
        (format_datetime(datetime(2100, 1, 1)), 3600, 3600),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("Wed, 32 Oct 2015 07:28:00 GMT", 0, 0),
        ("soon", 0, 0),
        ("Wed, 21 Oct 99999999999999999999 07:28:00 GMT", 0, 0),
        ("Wed, 21 Oct 2015 07:28:00 +99999999999999999999", 0, 0),
        ("-1", 0, 0),
        ("²", 0, 0),
    ],
)
async def test_retry_after_is_seconds_or_a_date(text: str, least: float, most: float) -> None:
    assert least <= _seconds(text) <= most


async def test_retry_after_is_a_date_from_now_on() -> None:
    now = datetime.now(UTC)
    assert _seconds(format_datetime(now + timedelta(days=1))) == 3600
    assert 1 <= _seconds(format_datetime(now + timedelta(seconds=1800), usegmt=True)) <= 1800


def _seconds(text: str) -> float:
    response = httpx.Response(503, headers=[(b"Retry-After", text.encode())])
    error = httpx.HTTPStatusError("503", request=httpx.Request("GET", "http://x"), response=response)
    return long_poll_client._retry_after(error)


async def test_a_server_that_comes_later_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    reader = Reader(f"http://127.0.0.1:{port}", "news")
    with caplog.at_level(logging.WARNING, long_poll_client.__name__):
        server = await asyncio.to_thread(ServerProcess, tmp_path, "--port", str(port))
    async with server.client() as client:
        await publish(client, "news", "first")
    await reader.until(1)
    await reader.stop()
    assert "as it raised ConnectError" in caplog.text
    assert await asyncio.to_thread(server.stop) == 0


async def _run(*arguments: str) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "examples.long_poll_client", *arguments]
    return await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


async def test_the_command_prints_messages_until_it_is_interrupted(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        async with server.client() as client:
            for value in ("skipped", "ünïcödé\n"):
                await publish(client, "news", value)
            process = await _run(server.url, "news", "--offset", "1")
            assert process.stdout is not None
            assert json.loads(await process.stdout.readline()) == {"offset": 1, "value": "ünïcödé\n"}
            await publish(client, "news", None)
            assert await process.stdout.readline() == b'{"offset": 2, "value": null}\n'
            process.send_signal(signal.SIGINT)
            assert await process.communicate() == (b"", b"")
            assert process.returncode == 130


async def test_the_command_names_the_error(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        process = await _run(server.url, "a b")
        _, error = await process.communicate()
    assert (process.returncode, error[:35]) == (1, b'400: {"error":"a topic is named by ')
    process = await _run("localhost", "news")
    _, error = await process.communicate()
    assert (process.returncode, error[:30]) == (1, b"localhost: Request URL is miss")
