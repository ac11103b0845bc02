"""uvicorn's own tests of its HTTP protocols, with ours in the place of its `HttpToolsProtocol`.

`python -m tests.uvicorn.own_tests [FOLDER]` downloads the source distribution of the installed uvicorn with pip into
the folder, unless it is there, and runs the tests that it brings.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

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
    def connection_made(self, transport):
        global made
        made += 1
        super().connection_made(transport)


httptools_impl.HttpToolsProtocol = HttpToolsProtocol


def pytest_terminal_summary(terminalreporter):
    terminalreporter.line(f"connections with ParkingProtocol: {made}")
"""


def run(folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run the tests. Those of its other protocols are left out."""
    source = brought.source("uvicorn", folder)
    (folder / "in_place.py").write_text(PLUGIN)
    return brought.run(
        source,
        *("-o", "addopts=", "-k", "not h11 and not zttp and not http2", *TESTS),
        plugins=["in_place", "anyio.pytest_plugin"],
        paths=[source, folder],
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        done = run(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            done = run(Path(folder))
    sys.stdout.write(done.stdout)
    sys.exit(done.returncode)
