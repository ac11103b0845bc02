"""For any bytes of a client, in any packets, the server answers with the same bytes as without parking.

One thing is better: what is no request, behind a request that waits, is refused after its answer.
uvicorn alone refuses it at once, in the place of the answer.
"""

import asyncio
import os
import re

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from purgatory.uvicorn import ParkingProtocol
from tests.uvicorn.board import Board
from tests.uvicorn.serving import PROTOCOLS, Server, serving

EXAMPLES = 1000 if os.environ.get("HYPOTHESIS_PROFILE") == "searching" else 20

LOOK = b"GET /look?timeout=0.01 HTTP/1.1\r\nHost: x\r\n\r\n"
REQUESTS = [
    LOOK,
    b"HEAD /look?timeout=0.01 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /look?timeout=0.01&body=read HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n12345",
    b"POST /look?timeout=0.01 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"GET /look?timeout=0.01 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"GET /look?timeout=0.01 HTTP/1.0\r\n\r\n",
    b"GET /look?timeout=0.01 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    b"\r\n",
    b"NONSENSE\r\n\r\n",
    b"GET /look?timeout=0.01 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
]


REFUSAL = (
    b"HTTP/1.1 400 Bad Request\r\nserver: uvicorn\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 30\r\nconnection: close\r\n\r\nInvalid HTTP request received."
)


class Eager(ParkingProtocol):
    """Idle connections become small as soon as they can."""

    settle_after = 0.001


streams = st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=5).map(b"".join)


@st.composite
def packets(draw: st.DrawFn) -> list[tuple[bytes, float]]:
    """The packets of a client, each with the seconds until the next one."""
    stream = draw(streams)
    cuts = sorted(draw(st.sets(st.integers(0, len(stream)), max_size=4)))
    parts = [stream[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    return [(part, draw(st.sampled_from([0.0, 0.003, 0.02]))) for part in parts if part]


async def _answered(server: Server, sent: list[tuple[bytes, float]]) -> bytes:
    """All that the server sends, until it has nothing more to say."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    received = b""

    async def read() -> None:
        nonlocal received
        while data := await reader.read(65536):
            received += data

    reading = asyncio.create_task(read())
    for packet, pause in sent:
        writer.write(packet)
        await asyncio.sleep(pause)
    length = -1
    while length != len(received):  # no more comes after a while
        length = len(received)
        await asyncio.wait([reading], timeout=0.15)
    reading.cancel()
    await asyncio.wait([reading])
    writer.transport.abort()
    return re.sub(rb"date: [^\r]*\r\n", b"", received)


def same(answered: bytes, without: bytes) -> bool:
    """Whether these are the same bytes, but for the time of a refusal: it leaves out what is not answered by then."""
    if not (answered.endswith(REFUSAL) and without.endswith(REFUSAL)):
        return answered == without
    answers = sorted([answered.removesuffix(REFUSAL), without.removesuffix(REFUSAL)], key=len)
    return answers[1].startswith(answers[0])


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(sent=packets())
@example(sent=[(LOOK, 0.003), (b"NONSENSE\r\n\r\n", 0.0)])
def test_the_bytes_are_the_same_as_without_parking(sent: list[tuple[bytes, float]]) -> None:
    async def compare() -> None:
        found = []
        for http in (*PROTOCOLS.values(), Eager):
            board = Board()
            async with serving(board.app, http) as server:
                found.append(await _answered(server, sent))
                await board.until_waiting(0)
        parked, without, eager = found
        assert same(parked, without), (parked, without)
        assert same(eager, without), (eager, without)

    asyncio.run(compare())
