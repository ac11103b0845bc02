"""uvicorn's own tests of its HTTP protocols, with ours in the place of its `HttpToolsProtocol`.

`python -m tests.uvicorn.own_tests [FOLDER]` downloads the source distribution of the installed uvicorn with pip into
the folder, unless it is there, and runs the tests that it brings.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

import uvicorn

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


def download(folder: Path) -> Path:
    """The source distribution of the installed uvicorn, unpacked in `folder`."""
    source = folder / f"uvicorn-{uvicorn.__version__}"
    if not source.exists():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "uvicorn"]
        subprocess.run([*command, "--dest", str(folder), f"uvicorn=={uvicorn.__version__}"], check=True)
        with tarfile.open(folder / f"{source.name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return source


def run(folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run the tests. Those of its other protocols are left out."""
    source = download(folder)
    (folder / "in_place.py").write_text(PLUGIN)
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "in_place", "-p", "no:cacheprovider", "-p", "no:asyncio"),
            *("-p", "no:looptime_plugin"),
            *("-o", "addopts=", "-k", "not h11 and not zttp and not http2", *TESTS),
        ],
        cwd=source,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(folder)])},
        capture_output=True,
        text=True,
        check=False,
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        done = run(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            done = run(Path(folder))
    sys.stdout.write(done.stdout + done.stderr)
    sys.exit(done.returncode)
