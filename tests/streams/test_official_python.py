"""The Python client of the protocol's authors against a server in this process."""

from itertools import count
from typing import Literal, TypeAlias

import httpx
import pytest
from durable_streams import DurableStream, DurableStreamError, SeqConflictError, StreamExistsError, StreamNotFoundError

from tests.streams.serving import Server

Live: TypeAlias = Literal["auto", "long-poll", "sse"]

SETTINGS = {"long_poll_timeout": 1.0}
_NUMBERS = count()


@pytest.fixture
def url(server: Server) -> str:
    return f"{server.url}/v1/stream/python/{next(_NUMBERS)}"


def test_python_reads_what_it_has_appended_and_gets_errors_that_it_knows(url: str) -> None:
    with pytest.raises(StreamNotFoundError):
        DurableStream.connect(url)
    with DurableStream.create(url, content_type="text/plain", body="hello ") as handle:
        between = handle.head().offset
        end = handle.append("wörld".encode(), seq="2").next_offset
        for offset, text in ((None, "hello wörld"), ("-1", "hello wörld"), (between, "wörld"), (end, ""), ("now", "")):
            with handle.stream(offset=offset, live=False) as found:
                assert (found.read_text(), found.offset, found.up_to_date) == (text, end, True)
        with pytest.raises(StreamExistsError):
            DurableStream.create(url, content_type="application/json")
        with pytest.raises(SeqConflictError):
            handle.append("b", seq="1")
        with pytest.raises(DurableStreamError, match="status=400"), handle.stream(offset="no offset"):
            pass
        handle.delete()
        with pytest.raises(StreamNotFoundError):
            handle.append("b")


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
