"""The TypeScript client of the protocol's authors against `purgatory serve`, in a process of its own."""

import os
import re
import subprocess
from pathlib import Path

from tests.streams.node import installed
from tests.streams.processes import running
from tests.support.servers import program


def test_typescript_client_appends_reads_and_follows(tmp_path: Path) -> None:
    folder = installed()
    command = [program("npx", "npm"), "vitest", "run", "client.test.ts", "--no-color", "--retry", "0"]
    with running(tmp_path, "--long-poll-timeout", "1") as server:
        environment = {**os.environ, "STREAMS_URL": server.url}
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500, check=False
        )
    said = done.stdout[-10_000:] + done.stderr
    assert done.returncode == 0, said
    assert re.search(r"Tests +12 passed \(12\)", done.stdout), said
