"""The fixtures of the tests of parked requests."""

import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from purgatory.uvicorn import ParkingProtocol
from tests.uvicorn.board import Board
from tests.uvicorn.serving import PROTOCOLS, Client, Server, connected, serving


@pytest.fixture(params=["warm", "cold"], autouse=True)
def temperature(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether quiet connections keep their transports, or give them away as soon as they can."""
    seconds = 0.0 if request.param == "cold" else math.inf
    monkeypatch.setattr(ParkingProtocol, "cool_after", seconds)
    monkeypatch.setenv("PURGATORY_COOL_AFTER", str(seconds))
    return str(request.param)


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
