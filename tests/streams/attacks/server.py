"""The server that is attacked, as a process with a folder of its own, and the probe that measures it."""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.streams.attacks import probe

STARTING = 60.0


class Server:
    """A `purgatory serve` with its defaults, but for the options given."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process = process
        self._log = log
        self.port = self._started()
        command = [sys.executable, probe.__file__, str(self.port), str(process.pid)]
        self.probe = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.probe.stdout is not None
        assert self.probe.stdout.readline() == "ready\n"

    def _started(self) -> int:
        end = time.monotonic() + STARTING
        while time.monotonic() < end and self.process.poll() is None:
            if found := re.search(r"running on http://127\.0\.0\.1:(\d+)", self.log):
                return int(found[1])
            time.sleep(0.02)
        raise RuntimeError(f"the server did not start: {self.log}")

    @property
    def log(self) -> str:
        """What the server has written so far."""
        return self._log.read_text(errors="replace")

    def measured(self) -> dict[str, Any]:
        """Stop the probe. Returns what it has measured."""
        result: dict[str, Any] = json.loads(self.probe.communicate()[0])
        return result


@contextmanager
def attacked(python: str, options: Sequence[str], files: int | None = None) -> Iterator[Server]:
    """A server for as long as the context lasts, with at most so many open files."""
    with tempfile.TemporaryDirectory(prefix="attacked-") as folder:
        command = [python, "-m", "purgatory", "serve", "--port", "0", "--data", f"{folder}/data", *options]
        if files is not None:
            command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
        log = Path(folder) / "log"
        processes: list[subprocess.Popen[Any]] = []
        try:
            with log.open("w") as file:
                # In that folder: in this one, `-m purgatory` is the package that is here, whatever the interpreter.
                processes.append(subprocess.Popen(command, cwd=folder, stdout=file, stderr=file))
            server = Server(processes[0], log)
            processes.append(server.probe)
            yield server
        finally:
            for process in processes:  # how a server ends is the subject of other tests
                process.kill()
                process.communicate()
