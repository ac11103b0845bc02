"""Event streams are made piece by piece, as their clients take them."""

from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from purgatory.streams.http import events
from tests.streams.processes import ROOT, append, create
from tests.streams.serving import serving
from tests.streams.test_limits import slow_reader

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

LINES = b"\n" * 1024 * 1024
"""One append, of which the events are six times as long."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the pieces that are made."""
    sizes: list[int] = []
    real = events.Piece

    def piece(encoded: bytes) -> events.Piece:
        made = real(encoded)
        sizes.append(len(made.encode()))
        return made

    monkeypatch.setattr(events, "Piece", piece)
    return sizes


async def test_readers_that_take_nothing_share_the_few_pieces_that_are_made(tmp_path: Path, made: list[int]) -> None:
    with serving(data=str(tmp_path)) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            await create(client, "lines")
            await append(client, "lines", LINES)
            with ExitStack() as stack:
                for _ in range(25):
                    stack.enter_context(slow_reader(server.port, "lines", "&live=sse"))
                limits = server.application._endpoint.limits
                while limits.memory.bytes < 25 * 64 * 1024:
                    await client.get("/health")
            # Each piece was made once for all 25, and not 25 times.
            assert max(made) < 512 * 1024
            assert sum(made) < 7 * 1024 * 1024


async def test_a_reader_gets_all_of_a_long_append(tmp_path: Path, made: list[int]) -> None:
    with serving(data=str(tmp_path), event_stream_timeout=5.0) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            await create(client, "lines")
            await append(client, "lines", LINES[: len(LINES) // 4] + "ä€\r\n".encode() * 100_000)
            response = await client.get(f"{ROOT}/lines?offset=-1&live=sse")
    data = [
        "\n".join(line.removeprefix("data:") for line in event.split("\n")[1:])
        for event in response.text.split("\n\n")
        if event.startswith("event: data\n")
    ]
    assert "".join(data) == LINES[: len(LINES) // 4].decode() + "ä€\n" * 100_000
    assert max(made) < 512 * 1024
    assert len(made) > 10
