"""`purgatory serve` in a process of its own, with streams of JSON and a log of the requests."""

import itertools
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from tests.support.servers import reserved_port

JSON = {"Content-Type": "application/json"}


class JsonServer:
    """The server, on SQLite. `stop` and `start` as often as you like: the port stays."""

    def __init__(self, data: Path, *options: str) -> None:
        port = reserved_port()
        self.url = f"http://127.0.0.1:{port}"
        self._command = [sys.executable, "-m", "purgatory", "serve", "--port", str(port), "--data", str(data)]
        self._command += ["--access-log", *options]
        data.mkdir(parents=True, exist_ok=True)
        self._log = data / "log"
        self._streams = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, and return when it answers."""
        self._client = httpx.Client(base_url=self.url, timeout=60)
        with self._log.open("ab") as log:
            process = self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        while not self._answers():
            assert process.poll() is None, self._log.read_text()
            time.sleep(0.05)

    def stop(self) -> None:
        """End it with SIGTERM. Harmless while it does not run."""
        self._client.close()
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._process = None

    def stream(self, name: str, *messages: Any) -> str:
        """The URL of a new stream of JSON with these messages, whose name begins with `name`."""
        url = f"{self.url}/v1/stream/{name}-{next(self._streams)}"
        self.make(url, *messages)
        return url

    def make(self, url: str, *messages: Any) -> None:
        """Make a stream of JSON with these messages."""
        response = self._client.put(url, content=json.dumps(messages), headers=JSON)
        assert response.is_success, response.text

    def waiting(self) -> int:
        """How many reads wait."""
        found = re.search(
            r'^purgatory_delayed_operations\{purgatory="read"\} (\d+)', self._client.get("/metrics").text, re.MULTILINE
        )
        assert found is not None
        return int(found[1])

    def requests(self, url: str) -> list[str]:
        """The queries of all reads of a stream that were answered, in order."""
        path = re.escape(url.removeprefix(self.url))
        return re.findall(rf'"GET {path}\?(\S+) HTTP/1.1"', self._log.read_text())

    def _answers(self) -> bool:
        with suppress(httpx.HTTPError):
            return self._client.get("/health").is_success
        return False


@contextmanager
def running(data: Path, *options: str) -> Iterator[JsonServer]:
    """A server for as long as the context lasts. Its output must have no traceback."""
    server = JsonServer(data, *options)
    try:
        yield server
    finally:
        server.stop()
    output = (data / "log").read_text()
    assert "Traceback" not in output, output


def append(url: str, *messages: Any) -> str:
    """Append the messages, and return the offset behind them."""
    response = httpx.post(url, content=json.dumps(messages), headers=JSON, timeout=60)
    assert response.is_success, response.text
    return response.headers["Stream-Next-Offset"]
