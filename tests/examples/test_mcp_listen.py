"""An MCP server whose listeners cost no task: the SDK's own client, and its own server beside it frame by frame."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from mcp.client import Client
from mcp.client.subscriptions import ResourceUpdated, ToolsListChanged
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.types import SubscriptionFilter
from pydantic import AnyHttpUrl

from examples import mcp_listen
from tests.support.operations import turn
from tests.uvicorn.serving import Server, serving

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

VERSION = "2026-07-28"
META = {"io.modelcontextprotocol/protocolVersion": VERSION, "io.modelcontextprotocol/clientCapabilities": {}}
HEADERS = {
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
    "MCP-Protocol-Version": VERSION,
    "Mcp-Method": "subscriptions/listen",
}


def listen(**wanted: Any) -> dict[str, Any]:
    """A request for a stream."""
    params = {"_meta": META, "notifications": wanted}
    return {"jsonrpc": "2.0", "id": 7, "method": "subscriptions/listen", "params": params}


@asynccontextmanager
async def running(of_the_sdk: bool, **options: Any) -> AsyncIterator[tuple[Server, mcp_listen.Listeners]]:
    """A new server of the example, or the one that the SDK makes of it."""
    listeners = mcp_listen.Listeners()
    notes = MCPServer("Notes", subscriptions=listeners, **options)
    sdk = notes.streamable_http_app(transport_security=mcp_listen.LOCAL)
    if not of_the_sdk:
        mcp_listen.park_listeners(sdk, listeners, mcp_listen.LOCAL)
    async with serving(sdk, timeout_graceful_shutdown=10) as server:
        yield server, listeners


def url(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}/mcp"


async def frames(of_the_sdk: bool) -> list[Any]:
    """The messages of a stream, with events that are published when it has been acknowledged."""
    request = listen(toolsListChanged=True, resourceSubscriptions=["note://todo"])
    found: list[Any] = []
    async with (
        running(of_the_sdk) as (server, listeners),
        httpx.AsyncClient(timeout=30) as client,
        client.stream("POST", url(server), json=request, headers=HEADERS) as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        async for line in response.aiter_lines():
            assert not line.startswith("id:"), "the SDK's client would try to resume the stream"
            if not line.startswith("data:"):
                continue
            found.append(json.loads(line.removeprefix("data:")))
            if len(found) == 1:
                for event in (ResourceUpdated("note://other"), ResourceUpdated("note://todo"), ToolsListChanged()):
                    await listeners.publish(event)
            if len(found) == 3:
                break
    return found


async def test_messages_are_those_of_the_sdk() -> None:
    ours, theirs = [await frames(of_the_sdk) for of_the_sdk in (False, True)]
    assert ours[0] == theirs[0]
    assert sorted(ours[1:], key=str) == sorted(theirs[1:], key=str)
    assert [each["method"] for each in theirs] == [
        "notifications/subscriptions/acknowledged",
        "notifications/resources/updated",
        "notifications/tools/list_changed",
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"headers": {"Accept": "application/json"}},
        {"headers": {"MCP-Protocol-Version": "1999-01-01"}},
        {"headers": {"Host": "evil.example"}},
        {"headers": {"Content-Type": "text/plain"}},
        {"content": b"[1,"},
        {"content": b"[" * 5000},
        {"content": b"[]"},
        {"content": b'{"jsonrpc": "2.0", "method": "subscriptions/listen"}'},
        {"json": {**listen(), "params": {"notifications": {}}}},
        {"json": {**listen(), "params": {"_meta": META}}},
        {"json": {**listen(), "method": "tools/list"}},
        {"json": {**listen(), "padding": "x" * 100_000}, "headers": {"Accept": "nothing"}},
    ],
    ids=lambda change: str(change)[:60],
)
async def test_a_request_that_is_wrong_is_answered_by_the_sdk(change: dict[str, Any]) -> None:
    async with running(False) as (ours, _), running(True) as (theirs, _), httpx.AsyncClient(timeout=30) as client:
        body = {} if "content" in change else {"json": listen(toolsListChanged=True)}
        options = {**body, **change, "headers": {**HEADERS, **change.get("headers", {})}}
        responses = [await client.post(url(server), **options) for server in (ours, theirs)]
    answer, expected = [(response.status_code, response.text) for response in responses]
    assert answer == expected
    assert answer[0] != 200


@pytest.mark.parametrize("of_the_sdk", [False, True])
async def test_listeners_need_the_sdks_token_and_its_path(of_the_sdk: bool) -> None:
    class Verifier:
        async def verify_token(self, token: str) -> AccessToken | None:
            return AccessToken(token=token, client_id="me", scopes=[]) if token == "right" else None

    own = AnyHttpUrl("http://127.0.0.1")
    auth = AuthSettings(issuer_url=own, resource_server_url=own, validate_token_resource=False)
    async with (
        running(of_the_sdk, token_verifier=Verifier(), auth=auth) as (server, _),
        httpx.AsyncClient(timeout=30) as client,
    ):
        for token, path, status in (("wrong", "mcp", 401), ("right", "health", 404), ("right", "mcp", 200)):
            headers = {**HEADERS, "Authorization": f"Bearer {token}"}
            where = f"http://127.0.0.1:{server.port}/{path}"
            async with client.stream("POST", where, json=listen(toolsListChanged=True), headers=headers) as response:
                assert response.status_code == status


async def test_what_is_forgotten_may_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_listen, "MAX_EVENTS", 3)
    listeners = mcp_listen.Listeners()
    uris = [f"note://{number}" for number in range(5)]
    stream = mcp_listen.Stream(listeners, 1, SubscriptionFilter(resource_subscriptions=uris[:2]))
    for uri in uris[1:4]:
        await listeners.publish(ResourceUpdated(uri))
    assert stream.changed() == [ResourceUpdated(uris[1])]
    await listeners.publish(ResourceUpdated(uris[4]))
    assert stream.changed() == [ResourceUpdated(uri) for uri in uris[:2]], "the first of the events is forgotten"
    assert len(listeners.last) == 3
    assert not mcp_listen.Stream(listeners, 2, stream.honored).changed(), "one that comes later knows all"


async def test_a_resource_that_is_named_twice_is_told_once() -> None:
    listeners = mcp_listen.Listeners()
    stream = mcp_listen.Stream(listeners, 1, SubscriptionFilter(resource_subscriptions=["note://todo"] * 2))
    await listeners.publish(ResourceUpdated("note://todo"))
    assert stream.changed() == [ResourceUpdated("note://todo")]


async def test_listeners_beyond_the_limit_are_the_sdks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_listen, "MAX_LISTENERS", 0)
    async with (
        running(False) as (server, listeners),
        httpx.AsyncClient(timeout=30) as client,
        client.stream("POST", url(server), json=listen(toolsListChanged=True), headers=HEADERS) as response,
    ):
        assert response.status_code == 200
        assert listeners.purgatory.num_delayed == 0


async def test_the_client_of_the_sdk_is_told_what_it_has_named() -> None:
    async with (
        serving(mcp_listen.app) as server,
        Client(url(server)) as client,
        client.listen(tools_list_changed=True, resource_subscriptions=["note://todo"]) as told,
    ):
        assert told.honored.resource_subscriptions == ["note://todo"]
        for name in ("other", "todo"):
            await client.call_tool("edit_note", {"name": name, "text": "new"})
        assert await asyncio.wait_for(anext(told), 30) == ResourceUpdated("note://todo")


async def test_listeners_keep_no_task_and_end_at_shutdown() -> None:
    count = 200
    ends: list[Any] = []

    async def follow(client: httpx.AsyncClient, server: Server) -> None:
        async with client.stream("POST", url(server), json=listen(toolsListChanged=True), headers=HEADERS) as response:
            lines = [line async for line in response.aiter_lines() if line.startswith("data:")]
            ends.append(json.loads(lines[-1].removeprefix("data:")))

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:
        async with running(False) as (server, listeners):
            clients = [asyncio.create_task(follow(client, server)) for _ in range(count)]
            while listeners.purgatory.num_delayed < count:
                await turn()
            await server.until_no_task()
        await asyncio.gather(*clients)
    assert [end["id"] for end in ends] == [7] * count
    assert all(end["result"]["_meta"] == {SUBSCRIPTION_ID_META_KEY: 7} for end in ends)
