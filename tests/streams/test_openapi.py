"""The server behaves as its OpenAPI description says."""

import asyncio
import json
import os
import re
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from purgatory.streams.engine.demo import MAX_PENDING
from purgatory.streams.http.app import describe
from purgatory.streams.http.protocol import BODY_SECONDS, HEAD_SECONDS, MAX_HEAD_BYTES, MAX_HEADERS
from purgatory.streams.http.subscriptions import DEFAULT_LEASE, LEASE, MAX_NAME, MAX_STREAMS
from purgatory.streams.settings import Settings
from tests.streams.processes import ServerProcess, running
from tests.support.paths import ROOT

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "10"))
"""Requests of each kind for each operation."""
UNCHECKED = "positive_data_acceptance,negative_data_rejection"
"""Headers of the protocol exclude or need each other, which OpenAPI cannot say, and paths may be any text."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    waits = ("--long-poll-timeout", "0.05", "--event-stream-timeout", "0.05")
    with running(tmp_path_factory.mktemp("data"), *waits) as server:
        yield server


@pytest.mark.timeout(600 + 10 * EXAMPLES)
async def test_schemathesis_finds_no_answer_that_is_not_described(server: ServerProcess, tmp_path: Path) -> None:
    # In another directory, for it leaves a database there.
    command = [
        str(Path(sysconfig.get_path("scripts")) / "schemathesis"),
        *("--config-file", str(ROOT / "tests" / "streams" / "schemathesis.toml")),
        *("run", f"{server.url}/openapi.json", "--checks", "all", "--exclude-checks", UNCHECKED),
        *("--max-examples", str(EXAMPLES)),
        *("--warnings", "off", "--request-timeout", "10", "--seed", "1", "--generation-deterministic"),
    ]
    done = await asyncio.to_thread(subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Tested: *22\b", done.stdout), done.stdout


async def test_server_describes_itself_and_the_bounds_of_its_list(server: ServerProcess) -> None:
    async with server.client() as client:
        described, again = [(await client.get("/openapi.json")).json() for _ in range(2)]
        assert described == again == describe(Settings(long_poll_timeout=0.05))
        found = described["paths"]["/v1/streams"]["get"]["parameters"][2]["schema"]
        for limit, status in ((found["minimum"] - 1, 400), (found["maximum"], 200), (found["maximum"] + 1, 400)):
            assert (await client.get("/v1/streams", params={"limit": limit})).status_code == status


async def test_description_has_the_bounds_of_the_settings_and_the_code() -> None:
    described = describe(Settings(max_streams=7, max_units=9, long_poll_timeout=5))
    text = json.dumps(described)
    assert "The limit of 7 streams is reached" in text
    assert "exceed 9 bytes or messages" in text
    assert "No data was appended within 5 seconds." in text
    assert f"within {HEAD_SECONDS:g} seconds, or the body within {BODY_SECONDS:g}." in text
    assert f"are longer than {MAX_HEAD_BYTES} bytes, or there are more than {MAX_HEADERS} headers." in text
    assert described["components"]["parameters"]["Id"]["schema"]["pattern"] == f"^[A-Za-z0-9_-]{{1,{MAX_NAME}}}$"

    def schema(path: str) -> Any:
        return described["paths"][path]["put"]["requestBody"]["content"]["application/json"]["schema"]

    properties = schema("/v1/stream/__ds/subscriptions/{id}")["anyOf"][0]["properties"]
    assert properties["streams"]["maxItems"] == MAX_STREAMS
    lease = properties["lease_ttl_ms"]
    assert (lease["minimum"], lease["maximum"], lease["default"]) == (*LEASE, DEFAULT_LEASE)
    assert schema("/v1/demo")["properties"]["pending"]["maximum"] == MAX_PENDING
