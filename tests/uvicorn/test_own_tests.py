"""uvicorn's own tests of its HTTP protocols pass with ours in the place of its `HttpToolsProtocol`."""

from pathlib import Path
from typing import Final

import pytest

from tests.support import brought

TESTS: Final = [
    "tests/protocols/test_http.py",
    "tests/protocols/test_websocket.py",
    "tests/test_default_headers.py",
    "tests/test_server.py",
    "tests/middleware/test_logging.py",
    "tests/middleware/test_message_logger.py",
    "tests/middleware/test_proxy_headers.py",
]

PLUGIN: Final = """
from uvicorn.protocols.http import httptools_impl

from purgatory.uvicorn import ParkingProtocol


made = 0


class HttpToolsProtocol(ParkingProtocol):  # the tests ask for the name
    cool_after = 0.0
    settle_after = 0.001

    def connection_made(self, transport):
        global made
        made += 1
        self.take_over(transport)  # the tests send to this object


httptools_impl.HttpToolsProtocol = HttpToolsProtocol


def pytest_terminal_summary(terminalreporter):
    terminalreporter.line(f"connections with ParkingProtocol: {made}")
"""


@pytest.fixture
def temperature() -> None:
    """One of them is enough here: the other does less."""


@pytest.mark.timeout(1200)
def test_uvicorns_own_tests_pass(tmp_path: Path) -> None:
    source = brought.source("uvicorn", tmp_path)
    (tmp_path / "in_place.py").write_text(PLUGIN)
    done = brought.run(
        source,
        *("-o", "addopts=", "-k", "not h11 and not zttp and not http2", *TESTS),  # its other protocols
        plugins=["in_place", "anyio.pytest_plugin"],
        paths=[source, tmp_path],
    )
    passed, used = brought.counts(done, "connections with ParkingProtocol")
    assert passed > 300
    assert used > 100
