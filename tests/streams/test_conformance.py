"""The protocol's conformance suite, `@durable-streams/server-conformance-tests`, and the client in TypeScript."""

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

WAITS: dict[str, Any] = {"long_poll_timeout": 2.0, "local_webhooks": True}
LONG = pytest.mark.skipif(
    os.environ.get("HYPOTHESIS_PROFILE") != "searching", reason="takes long: HYPOTHESIS_PROFILE=searching"
)
pytestmark = pytest.mark.timeout(900)


def check(file: str, count: int, url: str, *options: str) -> None:
    """Run the tests of a file, all of which must pass."""
    command = [program("npx", "npm"), "vitest", "run", file, "--no-color", *options]
    environment = {**os.environ, "STREAMS_URL": url, "CONFORMANCE_TEST_URL": url}
    done = subprocess.run(command, cwd=installed(), env=environment, capture_output=True, text=True, timeout=600)
    said = done.stdout[-10_000:] + done.stderr
    assert done.returncode == 0, said
    assert re.search(rf"Tests +{count} passed \({count}\)", done.stdout), said


def conforms(url: str) -> None:
    check("conformance.test.ts", 338, url)


def test_mounted_server_on_sqlite_conforms_to_the_protocol(tmp_path: Path) -> None:
    with serving(prefix="/a b/streams", data=str(tmp_path), **WAITS) as server:
        conforms(server.url)


def test_server_on_postgresql_conforms_to_the_protocol(postgres: PostgresServer) -> None:
    with serving(database=postgres.create_database(), **WAITS) as server:
        conforms(server.url)


@LONG
def test_server_that_cannot_park_conforms_to_the_protocol(tmp_path: Path) -> None:
    with serving(http=HttpToolsProtocol, data=str(tmp_path), **WAITS) as server:
        conforms(server.url)


@LONG
def test_four_workers_conform_to_the_protocol(postgres: PostgresServer) -> None:
    options = ("--workers", "4", "--long-poll-timeout", "2", "--local-webhooks")
    with running(None, "--database", postgres.create_database(), *options) as server:
        conforms(server.url)


def test_typescript_client_appends_reads_and_follows(tmp_path: Path) -> None:
    with running(tmp_path, "--long-poll-timeout", "1") as server:
        check("client.test.ts", 12, server.url, "--retry", "0")
