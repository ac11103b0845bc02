"""The Python client of the protocol's authors against a server in this process."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Literal, TypeAlias

import httpx
import pytest
from durable_streams import (
    AsyncDurableStream,
    DurableStream,
    DurableStreamError,
    SeqConflictError,
    StreamExistsError,
    StreamNotFoundError,
    astream,
    stream,
)

from tests.streams.serving import Server, serving

Live: TypeAlias = Literal["auto", "long-poll", "sse"]

_NUMBERS = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for all tests."""
    with serving(data=str(tmp_path_factory.mktemp("data")), long_poll_timeout=1.0) as server:
        yield server


@pytest.fixture
def url(server: Server) -> str:
    """The URL of a stream for one test."""
    return f"{server.url}/v1/stream/python/{next(_NUMBERS)}"


def test_python_reads_what_it_has_appended(url: str) -> None:
    with DurableStream.create(url, content_type="text/plain", body="hello ") as handle:
        between = handle.head().offset
        end = handle.append("wörld".encode()).next_offset
        head = DurableStream.head_static(url)
        assert (head.content_type, head.offset) == ("text/plain", end)
        for offset, text in ((None, "hello wörld"), ("-1", "hello wörld"), (between, "wörld"), (end, ""), ("now", "")):
            with handle.stream(offset=offset, live=False) as found:
                assert found.read_text() == text
                assert (found.offset, found.up_to_date) == (end, True)


def test_python_gets_errors_that_it_knows(url: str) -> None:
    with pytest.raises(StreamNotFoundError):
        DurableStream.connect(url)
    with DurableStream.create(url, content_type="text/plain") as handle:
        with pytest.raises(StreamExistsError):
            DurableStream.create(url, content_type="application/json")
        handle.append("a", seq="2")
        with pytest.raises(SeqConflictError):
            handle.append("b", seq="1")
        with pytest.raises(DurableStreamError, match="status=400"), handle.stream(offset="no offset"):
            pass
        handle.delete()
        for refused in (handle.delete, lambda: handle.append("b"), lambda: stream(url, live=False)):
            with pytest.raises(StreamNotFoundError):
                refused()


def test_python_batches_what_threads_append(url: str) -> None:
    requests: list[httpx.Request] = []
    client = httpx.Client(timeout=60, event_hooks={"request": [requests.append]})
    with client, DurableStream.create(url, content_type="application/json", client=client) as handle:

        def append(writer: int) -> None:
            for number in range(20):
                handle.append([writer, number])

        with ThreadPoolExecutor(10) as threads:
            list(threads.map(append, range(10)))
        assert len(requests) < 200
        with handle.stream(live=False) as found:
            messages = found.read_json()
    assert sorted(messages) == [[writer, number] for writer in range(10) for number in range(20)]
    for writer in range(10):
        assert [number for each, number in messages if each == writer] == list(range(20))


@pytest.mark.parametrize("live", ["auto", "long-poll", "sse"])
def test_python_follows_a_stream(url: str, live: Live) -> None:
    client = httpx.Client(timeout=60)
    found: list[int] = []
    offset = "-1"
    with client, DurableStream.create(url, content_type="application/json", client=client) as handle:

        def append_after_a_poll(response: httpx.Response) -> None:
            if response.status_code == 204 and response.request.method == "GET":
                handle.append({"n": len(found)})

        client.event_hooks = {"response": [append_after_a_poll]}
        handle.append({"n": 0})
        for _ in range(2):  # the second follower goes on where the first one was
            with handle.stream(offset=offset, live=live) as events:
                for event in events.iter_events(mode="json"):
                    found += [message["n"] for message in event.data]
                    offset = event.next_offset
                    if len(found) % 4 == 0:
                        break
                    if live == "sse" or len(found) % 2:  # else the next one comes when a long poll has had nothing
                        handle.append({"n": len(found)})
            handle.append({"n": len(found)})
    assert found == list(range(8))


@pytest.mark.parametrize("live", ["auto", "long-poll", "sse"])
async def test_async_python_follows_a_stream(url: str, live: Live) -> None:
    found: list[int] = []
    async with await AsyncDurableStream.create(url, content_type="application/json") as handle:
        await asyncio.gather(*(handle.append(number) for number in range(50)))
        async with handle.stream(offset="-1", live=live) as messages:
            async for number in messages.iter_json():
                found.append(number)
                if len(found) == 60:
                    break
                if len(found) >= 50:
                    await handle.append(len(found))
        async with astream(url, live=False) as messages:
            assert await messages.read_json() == found == list(range(60))
        assert (await handle.head()).content_type == "application/json"
        await handle.delete()
        with pytest.raises(StreamNotFoundError):
            await handle.head()


@pytest.mark.parametrize("live", ["long-poll", "sse"])
async def test_async_python_follows_a_text(url: str, live: Live) -> None:
    lines = ["a\n", "ü\n\n", " b", "\n"]
    wholes = ["".join(lines[: number + 1]) for number in range(len(lines))]
    async with await AsyncDurableStream.create(url, content_type="text/plain") as handle:
        await handle.append(lines[0])
        text = ""
        async with handle.stream(offset="-1", live=live) as chunks:
            async for chunk in chunks.iter_text():
                text += chunk
                if text == wholes[-1]:
                    break
                if text in wholes:
                    await handle.append(lines[wholes.index(text) + 1])
    assert text == wholes[-1]
