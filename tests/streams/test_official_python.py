"""The Python client of the protocol's authors against a server in this process."""

from itertools import count
from typing import Literal

import pytest
from durable_streams import DurableStream, DurableStreamError, SeqConflictError, StreamExistsError, StreamNotFoundError

from tests.streams.serving import Server

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
def test_python_follows_a_stream(url: str, live: Literal["auto", "long-poll", "sse"]) -> None:
    found: list[int] = []
    offset = "-1"
    with DurableStream.create(url, content_type="application/json") as handle:
        for _ in range(2):  # the second follower goes on where the first one was
            handle.append({"n": len(found)})
            with handle.stream(offset=offset, live=live) as events:
                for event in events.iter_events(mode="json"):
                    found += [message["n"] for message in event.data]
                    offset = event.next_offset
                    if len(found) % 4 == 0:
                        break
                    handle.append({"n": len(found)})
    assert found == list(range(8))
