"""The long-poll server behaves as its OpenAPI description says."""

import asyncio
import os
import re
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from examples.long_poll_server import requests
from examples.long_poll_server.app import LongPollServer
from examples.long_poll_server.openapi import describe
from examples.long_poll_server.settings import Settings
from tests.support.paths import ROOT
from tests.support.server_process import ServerProcess, publish, running

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "10"))
"""Requests of each kind for each operation."""

Json = dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(tmp_path_factory.mktemp("data"), "--demo", "--max-wait", "0.05") as server:
        yield server


@pytest.fixture
async def description(server: ServerProcess) -> Json:
    async with server.client() as client:
        answer: Json = (await client.get("/openapi.json")).json()
        return answer


@pytest.mark.timeout(600 + 10 * EXAMPLES)
async def test_schemathesis_finds_no_answer_that_is_not_described(server: ServerProcess, tmp_path: Path) -> None:
    # In another directory, for it leaves a database there.
    command = [
        str(Path(sysconfig.get_path("scripts")) / "schemathesis"),
        *("--config-file", str(ROOT / "tests" / "server" / "schemathesis.toml")),
        *("run", f"{server.url}/openapi.json", "--checks", "all", "--max-examples", str(EXAMPLES)),
        *("--warnings", "off", "--request-timeout", "10", "--seed", "1", "--generation-deterministic"),
    ]
    done = await asyncio.to_thread(subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Tested: *8\b", done.stdout), done.stdout


async def test_every_route_is_described_with_its_methods(description: Json, tmp_path: Path) -> None:
    served: dict[str, set[str]] = {}
    server = LongPollServer(Settings(data=tmp_path))
    await server.log.close()
    for route in server.app.routes:
        if isinstance(route, Route):
            served.setdefault(route.path, set()).update(route.methods or ())
    described = {
        path: {method.upper() for method in item if method != "parameters"}
        for path, item in description["paths"].items()
    }
    assert described.pop("/topics/__statistics/messages") == {"GET", "POST"}
    assert described == {path: methods - {"HEAD"} for path, methods in served.items()}


async def test_every_bound_is_where_it_is_said_to_be(server: ServerProcess, description: Json) -> None:
    looked_at = 0
    async with server.client() as client:
        for method in ("get", "post"):
            for parameter in description["paths"]["/topics/{topic}/messages"][method]["parameters"]:
                schema = parameter["schema"]
                for value, is_right in _around(schema):
                    parameters = {parameter["name"]: value}
                    response = await client.request(
                        method, "/topics/bounds/messages", params=parameters, content='{"value": 1}'
                    )
                    assert (response.status_code != 400) == is_right, (parameter["name"], value, response.text)
                    looked_at += 1
    assert looked_at == 4 * 4 + 2 * 2


def _around(schema: Json) -> list[tuple[int, bool]]:
    inside = [(schema["minimum"], True)] if "minimum" in schema else []
    outside = [(schema["minimum"] - 1, False)] if inside else []
    if "maximum" in schema:
        inside.append((schema["maximum"], True))
        outside.append((schema["maximum"] + 1, False))
    return inside + outside


async def test_every_default_is_the_value_used_without_the_parameter(server: ServerProcess, description: Json) -> None:
    fetch = description["paths"]["/topics/{topic}/messages"]["get"]
    defaults = {each["name"]: each["schema"]["default"] for each in fetch["parameters"] if "default" in each["schema"]}
    assert list(defaults) == ["offset", "min_messages", "max_messages", "wait"]
    async with server.client() as client:
        for n in range(501):
            await publish(client, "defaults", n)
        without = await client.get("/topics/defaults/messages")
        assert without.content == (await client.get("/topics/defaults/messages", params=defaults)).content
        assert without.json()["next_offset"] == 500
    assert describe(Settings()) == describe(Settings(instance="other"))


async def test_settings_are_told(description: Json) -> None:
    assert "**Waits** are 0.05 seconds at the most" in description["info"]["description"]
    text = str(describe(Settings(max_topics=7, max_messages=9)))
    assert "There are 7 topics, or 9 messages in this one" in text
    assert str(requests.MAX_BODY_BYTES) in text


class TestEntityTags:
    """`ETag` and `If-None-Match`."""

    async def test_the_same_answer_has_the_same_tag_and_another_another(self, server: ServerProcess) -> None:
        async with server.client() as client:
            for n in range(3):
                await publish(client, "tags", n)
            answers: dict[str, str] = {}
            for query in ("", "?offset=1", "?offset=3", "?offset=9", "?max_messages=2", "?max_messages=3"):
                response = await client.get(f"/topics/tags/messages{query}")
                assert answers.setdefault(response.headers["etag"], response.text) == response.text
                assert response.headers["cache-control"] == "no-store"
            assert len(answers) == 5

    async def test_an_answer_that_the_client_has_is_not_sent_again(self, server: ServerProcess) -> None:
        async with server.client() as client:
            await publish(client, "again", 0)
            first = await client.get("/topics/again/messages")
            tag = first.headers["etag"]
            for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
                again = await client.get("/topics/again/messages", headers={"If-None-Match": known})
                assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
            await publish(client, "again", 1)
            grown = await client.get("/topics/again/messages", headers={"If-None-Match": tag})
            assert (grown.status_code, grown.json()["next_offset"]) == (200, 2)

    async def test_tags_go_on_over_a_restart_and_not_over_a_loss(self, tmp_path: Path) -> None:
        async def tag(data: Path) -> str:
            with running(data) as server:
                async with httpx.AsyncClient(base_url=server.url) as client:
                    response = await client.get("/topics/news/messages?wait=0")
                    return str(response.headers["etag"])

        assert await tag(tmp_path / "a") == await tag(tmp_path / "a") != await tag(tmp_path / "b")
