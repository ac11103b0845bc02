"""The server that is attacked, as a process with a folder of its own."""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.streams.attacks import probe

STARTING = 60.0


class Server:
    """A `purgatory serve` with its defaults, but for the options given, and a probe that measures it."""

    def __init__(self, python: str, folder: Path, options: Sequence[str], files: int | None) -> None:
        self._log = folder / "log"
        command = [python, "-m", "purgatory", "serve", "--port", "0", "--data", str(folder / "data"), *options]
        if files is not None:
            command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
        with self._log.open("w") as log:
            # In that folder: in this one, `-m purgatory` would be the package that is here, whatever the interpreter.
            self.process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        self.port = self._started()
        self._probe: subprocess.Popen[str] | None = None

    def _started(self) -> int:
        end = time.monotonic() + STARTING
        while time.monotonic() < end and self.process.poll() is None:
            if found := re.search(r"running on http://127\.0\.0\.1:(\d+)", self.log):
                return int(found[1])
            time.sleep(0.02)
        self.process.kill()
        raise RuntimeError(f"the server did not start: {self.log}")

    @property
    def log(self) -> str:
        """What the server has written so far."""
        return self._log.read_text(errors="replace")

    def begin_measuring(self) -> None:
        """Start the probe, and return when it asks."""
        command = [sys.executable, probe.__file__, str(self.port), str(self.process.pid)]
        self._probe = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._probe.stdout is not None
        assert self._probe.stdout.readline() == "ready\n"

    def measured(self) -> dict[str, Any]:
        """Stop the probe. Returns what it has measured."""
        assert self._probe is not None
        text, _ = self._probe.communicate()
        result: dict[str, Any] = json.loads(text)
        return result

    def stop(self) -> None:
        """Kill both processes: how a server ends is the subject of other tests."""
        for process in (self._probe, self.process):
            if process is not None:
                process.kill()
                process.communicate()


@contextmanager
def attacked(python: str, options: Sequence[str], files: int | None = None) -> Iterator[Server]:
    """A server for as long as the context lasts, with at most so many open files."""
    with tempfile.TemporaryDirectory(prefix="attacked-") as folder:
        server = Server(python, Path(folder), options, files)
        try:
            yield server
        finally:
            server.stop()


@cache
def local_webhooks(python: str) -> tuple[str, ...]:
    """The options with which the server calls webhooks on this machine. Some versions do it without."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-m", "purgatory", "serve", "--help"]
        text = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    return ("--local-webhooks",) if re.search(r"(?<!\S)\[?--local-webhooks", text) else ()
