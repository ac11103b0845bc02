"""Event streams are made piece by piece, as their clients take them."""

from contextlib import ExitStack

import httpx
import pytest

from purgatory.streams.http import events
from tests.streams.processes import ROOT, TEXT, append, create, slow_reader
from tests.streams.serving import Server

LINES = b"\n" * 1024 * 1024
"""One append, of which the events are six times as long."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []
    real = events.Piece

    def piece(encoded: bytes) -> events.Piece:
        made = real(encoded)
        sizes.append(len(made.encode()))
        return made

    monkeypatch.setattr(events, "Piece", piece)
    return sizes


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_readers_that_take_nothing_share_the_few_pieces_that_are_made(
    server: Server, client: httpx.AsyncClient, made: list[int]
) -> None:
    await create(client, "lines")
    await append(client, "lines", LINES)
    with ExitStack() as stack:
        for _ in range(25):
            stack.enter_context(slow_reader(server, "lines?offset=-1&live=sse"))
        while server.application._endpoint.limits.memory.bytes < 25 * 64 * 1024:
            await client.get("/health")
    # Each piece was made once for all 25, and not 25 times.
    assert max(made) < 512 * 1024
    assert sum(made) < 7 * 1024 * 1024


def test_a_reader_gets_all_of_a_long_append(http: httpx.Client, made: list[int]) -> None:
    text = "\n" * 512 * 1024 + "ä€\n" * 70_000
    sent = text.replace("€\n", "€\r\n").encode()
    created = http.put(f"{ROOT}/long", headers={**TEXT, "Stream-Closed": "true"}, content=sent)
    assert created.status_code == 201
    response = http.get(f"{ROOT}/long?offset=-1&live=sse")
    data = [
        "\n".join(line.removeprefix("data:") for line in event.split("\n")[1:])
        for event in response.text.split("\n\n")
        if event.startswith("event: data\n")
    ]
    assert "".join(data) == text
    assert max(made) < 512 * 1024
    assert len(made) > 10
