"""For any bytes of a client, in any packets, the server answers with the same bytes as without parking.

One thing is better: what is no request, behind a request that waits, is refused after its answer.
uvicorn alone refuses it at once, in the place of the answer.
"""

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.responses import JSONResponse, Response

from purgatory.uvicorn import ParkingProtocol
from tests.uvicorn.board import Board
from tests.uvicorn.serving import PROTOCOLS, Server, serving

EXAMPLES = 1000 if os.environ.get("HYPOTHESIS_PROFILE") == "searching" else 60

LOOK = b"GET /look?seen=1&timeout=0.01 HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD = LOOK.replace(b"GET", b"HEAD")
EVENTS = b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n"
NOW = b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n"
READS = b"POST /look?seen=1&timeout=0.01&body=read HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n12345"
LEAVES = READS.replace(b"&body=read", b"")
REQUESTS = [
    LOOK,
    HEAD,
    EVENTS,
    NOW,
    READS,
    LEAVES,
    READS.replace(b"Host", b"Expect: 100-continue\r\nHost"),
    b"POST /look?seen=1&timeout=0.01 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"\r\n",
]
CLOSES = LOOK.replace(b"Host", b"Connection: close\r\nHost")
HTTP_1_0 = b"GET /look?seen=1&timeout=0.01 HTTP/1.0\r\n\r\n"
NO_REQUEST = b"NONSENSE\r\n\r\n"
LAST = [
    CLOSES,
    HTTP_1_0,
    NO_REQUEST,
    LOOK.replace(b"Host", b"Connection: close, Upgrade\r\nUpgrade: h2c\r\nHost"),
    LOOK.replace(b"Host", b"Content-Length: 5\r\nContent-Length: 6\r\nHost"),
]
"""After these the connection is closed."""


REFUSAL = (
    b"HTTP/1.1 400 Bad Request\r\nserver: uvicorn\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 30\r\nconnection: close\r\n\r\nInvalid HTTP request received."
)

Packets: TypeAlias = list[tuple[bytes, float]]
"""The packets of a client, each with the seconds until the next one."""


class Eager(ParkingProtocol):
    """Idle connections become small as soon as they can."""

    settle_after = 0.001


@st.composite
def packets(draw: st.DrawFn) -> Packets:
    """Cut requests, and at last some that close the connection in one packet: one that came later could reset it."""
    stream = b"".join(draw(st.lists(st.sampled_from(REQUESTS), max_size=5)))
    cuts = sorted(draw(st.sets(st.integers(0, len(stream)), max_size=4)))
    parts = [stream[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    last = draw(st.sampled_from(LAST)) + draw(st.sampled_from([b"", NOW, LOOK]))
    return [(part, draw(st.sampled_from([0.0, 0.003, 0.02]))) for part in [*parts, last] if part]


async def _answered(server: Server, sent: Packets) -> bytes:
    """All that the server sends until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    reading = asyncio.create_task(reader.read())
    for packet, pause in sent:
        writer.write(packet)
        await asyncio.sleep(pause)
    received = await reading
    writer.transport.abort()
    return re.sub(rb"date: [^\r]*\r\n", b"", received)


def same(answered: bytes, without: bytes) -> bool:
    """Whether these are the same bytes, but for the time of a refusal: it leaves out what is not answered by then."""
    if not (answered.endswith(REFUSAL) and without.endswith(REFUSAL)):
        return answered == without
    answers = sorted([answered.removesuffix(REFUSAL), without.removesuffix(REFUSAL)], key=len)
    return answers[1].startswith(answers[0])


Compare: TypeAlias = Callable[..., None]


@pytest.fixture(scope="module")
def compare() -> Iterator[Compare]:
    """Sends packets to uvicorn alone and with parking, and compares what they answer."""
    board = Board()
    board.notes.append("end")
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()

        async def start() -> list[Server]:
            protocols = (*PROTOCOLS.values(), Eager)
            return [await stack.enter_async_context(serving(board.app, http)) for http in protocols]

        servers = runner.run(start())

        async def answers(sent: Packets) -> list[bytes]:
            return await asyncio.gather(*(_answered(server, sent) for server in servers))

        def compare(sent: Packets, render: Callable[[list[str]], Any] = JSONResponse) -> None:
            board.render = render
            parked, without, eager = runner.run(answers(sent))
            assert without
            assert same(parked, without), (parked, without)
            assert same(eager, without), (eager, without)

        yield compare
        runner.run(stack.aclose())


@settings(max_examples=EXAMPLES)
@given(sent=packets())
@example(sent=[(LOOK, 0.003), (NO_REQUEST, 0.0)])
@example(sent=[(LOOK, 0.003), (NOW[:9], 0.003), (NOW[9:] + CLOSES, 0.0)])
@example(sent=[(EVENTS, 0.003), (EVENTS + CLOSES, 0.0)])
@example(sent=[(LOOK + NOW[:9], 0.02), (NOW[9:] + CLOSES, 0.0)])
@example(sent=[(LEAVES[:-3], 0.003), (LEAVES[-3:] + CLOSES, 0.0)])
@example(sent=[(LEAVES[:-3], 0.02), (LEAVES[-3:] + CLOSES, 0.0)])
@example(sent=[(LEAVES[:-5].replace(b" 5", b" 300000") + b"x" * 300_000 + CLOSES, 0.0)])
def test_bytes_are_the_same_as_without_parking(compare: Compare, sent: Packets) -> None:
    compare(sent)


def _unframed(notes: list[str]) -> Response:
    response = Response(b"unknown")
    del response.headers["content-length"]
    return response


@pytest.mark.parametrize(
    "render",
    [
        lambda notes: Response(b"x", 203, {"X-Own": "1"}, "image/own"),
        lambda notes: Response(status_code=204),
        lambda notes: Response(status_code=304),
        _unframed,
        lambda notes: Response(b"chunked", headers={"Transfer-Encoding": "chunked"}),
        lambda notes: Response(bytes(range(256)) * 8_000),
    ],
    ids=["own", "204", "304", "unframed", "chunked", "large"],
)
def test_responses_are_framed_as_without_parking(compare: Compare, render: Any) -> None:
    compare([(LOOK, 0.02), (HEAD, 0.02), (CLOSES, 0.0)], render)


def test_response_that_closes_the_connection_is_framed_as_without_parking(compare: Compare) -> None:
    for request in (LOOK, HEAD, HTTP_1_0):
        compare([(request, 0.0)], lambda notes: JSONResponse(notes, headers={"Connection": "x, Close"}))
