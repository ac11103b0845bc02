"""The protocol's public conformance suite: `@durable-streams/server-conformance-tests`, all of it."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tests.streams.node import installed
from tests.streams.processes import running
from tests.streams.serving import serving
from tests.support.servers import PostgresServer, program

ALL = 338
WAITS: dict[str, Any] = {"long_poll_timeout": 2.0, "local_webhooks": True}
LONG = pytest.mark.skipif(
    os.environ.get("HYPOTHESIS_PROFILE") != "searching", reason="takes long: HYPOTHESIS_PROFILE=searching"
)
pytestmark = pytest.mark.timeout(900)


def check(url: str) -> None:
    folder = installed()
    command = [program("npx", "npm"), "vitest", "run", "conformance.test.ts", "--no-color"]
    environment = {**os.environ, "CONFORMANCE_TEST_URL": url}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    passed = re.search(r"Tests +(\d+) passed \(\d+\)", done.stdout)
    said = done.stdout[-10_000:] + done.stderr
    assert done.returncode == 0, said
    assert passed is not None, said
    assert int(passed[1]) == ALL, said


def test_mounted_server_on_sqlite_conforms_to_the_protocol(tmp_path: Path) -> None:
    with serving(prefix="/a b/streams", data=str(tmp_path), **WAITS) as server:
        check(server.url)


def test_server_on_postgresql_conforms_to_the_protocol(postgres: PostgresServer) -> None:
    with serving(database=postgres.create_database(), **WAITS) as server:
        check(server.url)


@LONG
def test_server_that_cannot_park_conforms_to_the_protocol(tmp_path: Path) -> None:
    with serving(http=HttpToolsProtocol, data=str(tmp_path), **WAITS) as server:
        check(server.url)


@LONG
def test_four_workers_conform_to_the_protocol(postgres: PostgresServer) -> None:
    with running(
        None, "--database", postgres.create_database(), "--workers", "4", "--long-poll-timeout", "2", "--local-webhooks"
    ) as server:
        check(server.url)
