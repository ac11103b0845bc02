"""The fixtures of the tests of parked requests."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.uvicorn.board import Board
from tests.uvicorn.serving import PROTOCOLS, Client, Server, connected, serving


@pytest.fixture(params=PROTOCOLS)
def http(request: pytest.FixtureRequest) -> Any:
    """The protocol class: with parking, and as uvicorn is without."""
    return PROTOCOLS[request.param]


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.fixture
async def server(board: Board) -> AsyncIterator[Server]:
    """A server of the board that parks requests."""
    async with serving(board.app) as server:
        yield server


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with connected(server) as client:
        yield client
