"""The server mounted in an application: below any path, on any ASGI server, started by the application's lifespan."""

import asyncio
import inspect
import logging
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from durable_streams import AsyncDurableStream
from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.routing import Mount

from purgatory.streams import durable_streams, storage
from purgatory.streams.http.requests import below_root, relative
from purgatory.streams.settings import Settings
from tests.asgi.processes import Server, serving
from tests.streams import serving as here
from tests.streams.hooks import HOOK
from tests.streams.processes import JSON, TEXT

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

ROOT = "/streams/v1/stream"
COMMANDS = {
    "parked": ["purgatory.uvicorn", "--port", "0"],
    "httptools": ["uvicorn", "--port", "0", "--http", "httptools"],
    "h11": ["uvicorn", "--port", "0", "--http", "h11"],
    "hypercorn": ["hypercorn", "--bind", "127.0.0.1:0", "--workers", "0", "--graceful-timeout", "60"],
}


@pytest.fixture(scope="module", params=COMMANDS)
def name(request: pytest.FixtureRequest) -> str:
    command: str = request.param
    return command


@pytest.fixture(scope="module")
def server(name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An application with the streams, in a process of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOUNTED_DATA", str(tmp_path_factory.mktemp("data")))
        with serving(*COMMANDS[name], "tests.streams.mounted:app") as server:
            yield server


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with server.client() as client:
        yield client


@pytest.mark.asyncio(loop_factories=["asyncio"])
class TestServers:
    async def test_official_client_writes_and_follows(self, server: Server) -> None:
        url = f"{server.url}{ROOT}/official/client"
        async with await AsyncDurableStream.create(url, content_type="application/json") as handle:
            await asyncio.gather(*(handle.append(number) for number in range(10)))
            for live in ("long-poll", "sse"):
                found: list[int] = []
                async with handle.stream(offset="-1", live=live) as messages:
                    async for number in messages.iter_json():
                        found.append(number)
                        if len(found) == 12:
                            break
                        if len(found) >= 10:
                            await handle.append(len(found))
                assert found == list(range(12))
            await handle.delete()

    async def test_urls_and_forks_have_the_prefix(self, server: Server, http: httpx.AsyncClient) -> None:
        created = await http.put(f"{ROOT}/a%20b/%C3%BC", content="hello", headers=TEXT)
        assert created.headers["location"] == f"{server.url}{ROOT}/a%20b/%C3%BC"
        for number, source in enumerate((f"{ROOT}/a%20b/%C3%BC", "/v1/stream/a%20b/%C3%BC")):
            fork = await http.put(f"{ROOT}/fork-{number}", headers={**TEXT, "Stream-Forked-From": source})
            assert fork.status_code == 201, fork.text
            assert (await http.get(f"{ROOT}/fork-{number}")).text == "hello"
        refused = await http.put(f"{ROOT}/bad", headers={**TEXT, "Stream-Forked-From": "/elsewhere/a"})
        assert refused.status_code == 400
        assert f"must be the path of a stream: {ROOT}/" in refused.text

    async def test_settings_of_the_process_are_left_alone(self, http: httpx.AsyncClient) -> None:
        assert (await http.get("/state")).json()["unchanged"] is True

    async def test_waiting_reads_keep_no_task_where_they_can_be_parked(
        self, name: str, http: httpx.AsyncClient
    ) -> None:
        await http.put(f"{ROOT}/waited-for", headers=TEXT)
        before = (await http.get("/state")).json()
        polls = [self.poll(http, "waited-for") for _ in range(20)]
        waiting = await self.until_waiting(http, 20)
        if name == "parked":
            assert waiting["tasks"] <= before["tasks"] + 2
        else:
            assert waiting["tasks"] >= before["tasks"] + 20
        await http.post(f"{ROOT}/waited-for", content="x", headers=TEXT)
        assert [(await poll).text for poll in polls] == ["x"] * 20

    async def test_waiting_reads_are_answered_when_shutdown_begins(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MOUNTED_DATA", str(tmp_path))
        with serving(*COMMANDS[name], "tests.streams.mounted:app") as server:
            async with server.client() as http:
                await http.put(f"{ROOT}/a", headers=TEXT)
                poll = self.poll(http, "a")
                await self.until_waiting(http, 1)
                server.process.send_signal(signal.SIGTERM)
                assert (await asyncio.wait_for(poll, 20)).status_code == 204
            assert "Traceback" not in await server.end()

    def poll(self, http: httpx.AsyncClient, path: str) -> "asyncio.Task[httpx.Response]":
        return asyncio.create_task(http.get(f"{ROOT}/{path}", params={"offset": "now", "live": "long-poll"}))

    async def until_waiting(self, http: httpx.AsyncClient, count: int) -> dict[str, Any]:
        while True:
            state: dict[str, Any] = (await http.get("/state")).json()
            if state["waiting"] == count:
                return state
            await asyncio.sleep(0.02)


class TestPage:
    def test_page_works_below_a_prefix(self, chrome: "Chrome", tmp_path: Path) -> None:
        from tests.streams.pages import opened

        with here.serving(prefix="/my app/streams", data=str(tmp_path)) as server, opened(chrome, server.url) as page:
            assert page.create("news") == "Created news."
            page.follow("news")
            page.until_followed("news", [])
            assert page.append("news", "hello") == "Appended to news, which now has 5 bytes."
            page.until_followed("news", ["hello"])
            page.until(lambda: ["news", "text/plain", "5 bytes", "open"] in page.listed())
            page.until(lambda: page.text("#centre-count") == "1")
            links = page.run("return [...document.querySelectorAll('footer a')].map(each => each.href)")
            own = [link for link in links if link.startswith(server.url)]
            assert [httpx.get(link).status_code for link in own] == [200] * 3


class TestLifespan:
    def test_request_without_the_lifespan_is_told_what_to_add(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        streams = durable_streams(data=tmp_path / "data")
        app = FastAPI()
        app.mount("/streams", streams)
        with TestClient(app) as client, caplog.at_level(logging.ERROR):
            for path in ("health", "v1/stream/a", "v1/streams", ""):
                answer = client.get(f"/streams/{path}")
                assert answer.status_code == 503
                assert "lifespan=streams.lifespan" in answer.json()["error"]["message"]
        assert len(caplog.records) == 1
        assert "async with streams.lifespan(app)" in caplog.text
        assert not (tmp_path / "data").exists()

    def test_application_starts_again_with_what_was_stored(self, tmp_path: Path) -> None:
        streams = durable_streams(data=tmp_path)
        app = FastAPI(lifespan=streams.lifespan)
        app.mount("/streams", streams)
        for number in range(3):
            with TestClient(app) as client:
                answer = client.put(f"{ROOT}/a", headers=TEXT)
                assert answer.status_code == (200 if number else 201)
                client.post(f"{ROOT}/a", content="x", headers=TEXT)
                assert client.get(f"{ROOT}/a").text == "x" * (number + 1)
                assert client.get("/streams/metrics").text.count("purgatory_server_info{") == 1
        assert TestClient(app).get(f"{ROOT}/a").status_code == 503

    async def test_two_servers_of_a_process_have_a_folder_each(self, tmp_path: Path) -> None:
        one, other = (durable_streams(data=tmp_path / name) for name in ("one", "other"))
        async with one.lifespan(None), other.lifespan(None), client(one) as here, client(other) as there:
            for text, http in (("one", here), ("other", there)):
                assert (await http.put("/v1/stream/a", content=text, headers=TEXT)).status_code == 201
            assert [(await http.get("/v1/stream/a")).text for http in (here, there)] == ["one", "other"]

    async def test_folder_that_another_server_uses_is_refused(self, tmp_path: Path) -> None:
        one, other = (durable_streams(data=tmp_path) for _ in range(2))
        async with one.lifespan(None):
            with pytest.raises(BlockingIOError, match=f"another server uses the folder.*{tmp_path}"):
                async with other.lifespan(None):
                    pass
        async with other.lifespan(None):
            pass

    async def test_database_without_its_extra_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(sys.modules, "purgatory.streams.storage.postgresql", raising=False)
        monkeypatch.delattr(storage, "postgresql", raising=False)
        monkeypatch.setitem(sys.modules, "psycopg", None)
        with pytest.raises(ModuleNotFoundError, match=r"asyncio-purgatory\[server,postgresql\]"):
            async with durable_streams(database="postgresql://localhost/x").lifespan(None):
                pass

    async def test_lifespan_that_is_entered_twice_is_refused(self, tmp_path: Path) -> None:
        streams = durable_streams(data=tmp_path)
        async with streams.lifespan(None):
            with pytest.raises(RuntimeError, match="is running already: enter its lifespan once"):
                async with streams.lifespan(None):
                    pass
            async with client(streams) as http:
                assert (await http.get("/health")).status_code == 200


@asynccontextmanager
async def client(
    app: Any, address: str = "192.0.2.1", host: str = "localhost", root_path: str = ""
) -> AsyncIterator[httpx.AsyncClient]:
    """A client in the process, which comes from `address`."""
    transport = httpx.ASGITransport(app, client=(address, 1), root_path=root_path)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as http:
        yield http


@pytest.mark.parametrize(
    ("root_path", "path", "raw_path", "route", "raw_route"),
    [
        ("", "/v1/stream/a", b"/v1/stream/a", "/v1/stream/a", "/v1/stream/a"),
        ("/s", "/s/v1/stream/a b", b"/s/v1/stream/a%20b", "/v1/stream/a b", "/v1/stream/a%20b"),
        ("/s/", "/s/v1/stream/a", b"/s/v1/stream/a", "/v1/stream/a", "/v1/stream/a"),
        ("/s", "/v1/stream/a", b"/s/v1/stream/a", "/v1/stream/a", "/v1/stream/a"),
        ("/s", "/v1/stream/a/b", b"/v1/stream/a%2Fb", "/v1/stream/a/b", "/v1/stream/a%2Fb"),
        ("/s", "/streams/a", b"/streams/a", "/streams/a", "/streams/a"),
        ("/s t", "/s t/v1/a/b", b"/s%20t/v1/a%2Fb", "/v1/a/b", "/v1/a%2Fb"),
        ("/api/s", "/s/v1/stream/a/b", b"/s/v1/stream/a%2Fb", "/v1/stream/a/b", "/v1/stream/a%2Fb"),
        ("/api/s", "/s/v1/stream/a", b"/api/s/v1/stream/a", "/v1/stream/a", "/v1/stream/a"),
        ("/s", "/s/v1/stream/ü", None, "/v1/stream/ü", "/v1/stream/%C3%BC"),
        ("/s/t", "/s/t/v1/a", b"/s%2Ft/v1/a", "/v1/a", "/v1/a"),
        ("/v1/stream", "/v1/stream/v1/stream/a", b"/v1/stream/v1/stream/a", "/v1/stream/a", "/v1/stream/a"),
        ("/s", "/s", b"/s", "", ""),
    ],
)
def test_paths_are_relative_to_the_prefix(
    root_path: str, path: str, raw_path: bytes | None, route: str, raw_route: str
) -> None:
    scope = {"root_path": root_path, "path": path, **({} if raw_path is None else {"raw_path": raw_path})}
    found = relative(scope)
    assert (found["path"], found["raw_path"].decode()) == (route, raw_route)
    prefix = root_path.rstrip("/")
    assert below_root(found) == {**found, "path": prefix + route, "root_path": prefix}


@pytest.mark.asyncio(loop_factories=["asyncio"])
class TestPrefixes:
    @pytest.mark.parametrize("path", ["/v1/stream", "/page", "/a b/ü"])
    async def test_any_mount_point_is_possible(self, tmp_path: Path, path: str) -> None:
        streams = durable_streams(data=tmp_path)
        app = Starlette(routes=[Mount("/outer", Starlette(routes=[Mount(path, streams)]))])
        async with streams.lifespan(app), client(app) as http:
            base = f"/outer{path}"
            created = await http.put(f"{base}/v1/stream/a", headers=TEXT)
            assert created.status_code == 201
            url = httpx.URL(created.headers["location"])
            assert url.path == f"{base}/v1/stream/a"
            for each in ("/page/main.js", "/", "/health", "/metrics", "/v1/statistics", "/v1/streams"):
                assert (await http.get(base + each)).status_code == 200
            assert httpx.URL((await http.get(base)).headers["location"]).path == f"{base}/"
            assert (await http.get(f"{base}/nothing")).status_code == 404
            server = (await http.get(f"{base}/openapi.json")).json()["servers"][0]["url"]
            assert (await http.get(f"{server}/v1/stream/a")).status_code == 200

    @pytest.mark.parametrize("sent", [f"/api{ROOT}", ROOT], ids=["uvicorn --root-path", "hypercorn --root-path"])
    async def test_prefix_that_a_proxy_takes_away_is_in_the_urls(self, tmp_path: Path, sent: str) -> None:
        streams = durable_streams(data=tmp_path)
        app = Starlette(routes=[Mount("/streams", streams)])
        async with streams.lifespan(app), client(app, root_path="/api") as http:
            created = await http.put(f"{sent}/a", content="x", headers=TEXT)
            assert created.headers["location"] == f"http://localhost/api{ROOT}/a"
            forked = await http.put(f"{sent}/b", headers={**TEXT, "Stream-Forked-From": f"/api{ROOT}/a"})
            assert forked.status_code == 201
            assert (await http.get(f"{sent}/b")).text == "x"

    async def test_webhooks_are_told_the_url_and_wait_without_one(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        subscription, keys = "/v1/stream/__ds/subscriptions/s", "/v1/stream/__ds/jwks.json"
        streams = durable_streams(data=tmp_path, url="http://localhost:2/streams/", local_webhooks=True)
        async with streams.lifespan(None), client(streams) as http:
            shown: dict[str, Any] = (await http.put(subscription, json=HOOK)).json()
            assert shown["webhook"]["signing"]["jwks_url"] == f"http://localhost:2/streams{keys}"
        streams = durable_streams(data=tmp_path)
        async with streams.lifespan(None), client(streams) as http:
            refused = await http.put(f"{subscription}2", json=HOOK)
            assert refused.status_code == 400
            assert "pass url to durable_streams" in refused.text
            await http.put("/v1/stream/e/1", content="1", headers=JSON)
            while shown["status"] != "failed":
                await asyncio.sleep(0.01)
                shown = (await http.get(subscription)).json()
            assert shown["webhook"]["signing"]["jwks_url"] == keys
        assert "this server has no url that could be called back" in caplog.text


@pytest.mark.asyncio(loop_factories=["asyncio"])
class TestGuard:
    """What is refused as `purgatory serve` does, and what is left to the application."""

    @pytest.mark.parametrize(
        ("address", "header", "allowed", "refused"),
        [
            *((each, None, None, True) for each in ("127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1")),
            # A page of another site can send these, by the browser on this machine.
            *(("192.0.2.1", each, None, True) for each in ("X-Forwarded-For", "Forwarded", "X-Real-IP")),
            *((each, None, None, False) for each in ("192.0.2.1", "10.0.0.1", "2001:db8::1", "testclient")),
            *((each, None, ["www.example.org"], True) for each in ("127.0.0.1", "192.0.2.1")),
            *((each, None, ["rebound.example"], False) for each in ("127.0.0.1", "192.0.2.1")),
        ],
    )
    async def test_clients_must_use_a_known_name_if_a_page_could_be_behind_them(
        self, tmp_path: Path, address: str, header: str | None, allowed: list[str] | None, refused: bool
    ) -> None:
        streams = durable_streams(data=tmp_path, allowed_hosts=allowed)
        headers = {} if header is None else {header: "192.0.2.1"}
        async with streams.lifespan(None):
            async with client(streams, address, "rebound.example") as http:
                answer = await http.get("/health", headers=headers)
                assert answer.status_code == (400 if refused else 200)
                message = "'rebound.example' is not a host name of this server: add it to allowed_hosts"
                assert (message in answer.text) is refused
            for known in ("localhost", "192.0.2.9", *(allowed or [])):
                async with client(streams, address, known) as http:
                    assert (await http.get("/health", headers=headers)).status_code == 200

    async def test_pages_of_other_origins_need_a_permission(self, tmp_path: Path) -> None:
        page = {"Origin": "https://page.example", "Sec-Fetch-Site": "cross-site"}
        origins = {None: 403, "https://other.example": 403, "https://page.example": 201, "*": 200}
        for allowed, status in origins.items():
            streams = durable_streams(data=tmp_path, allowed_origin=allowed)
            app = Starlette(routes=[Mount("/streams", streams)])
            middleware = CORSMiddleware(app, [page["Origin"]], ["*"], ["*"], expose_headers=["*"])
            async with streams.lifespan(app), client(middleware) as http:
                asked = {**page, "Access-Control-Request-Method": "PUT"}
                assert (await http.options(f"{ROOT}/a", headers=asked)).status_code == 200
                answer = await http.put(f"{ROOT}/a", headers={**page, **TEXT})
                assert answer.status_code == status
                assert answer.headers["access-control-allow-origin"] == "https://page.example"
                assert answer.headers["access-control-expose-headers"] == "*"
                if status == 403:
                    assert "allowed_origin" in answer.text
                # A link to the page is no request of a page.
                link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}
                assert (await http.get("/streams/", headers=link)).status_code == 200


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"data": 3}, TypeError, "data must be a path, not 3"),
            ({"data": ""}, ValueError, "data must be the path of a folder, not ''"),
            ({"database": "mysql://u:secret@x"}, ValueError, "database must be like postgresql://user@host/database"),
            ({"database": 1}, TypeError, "database must be a str, not 1"),
            ({"url": "/streams"}, ValueError, "url must be like https://streams.example.org, not /streams"),
            ({"local_webhooks": "no"}, TypeError, "local_webhooks must be True or False, not 'no'"),
            ({"allowed_hosts": "a.example"}, TypeError, "must be a collection of host names, not the str 'a.example'"),
            ({"allowed_hosts": ["a:80"]}, ValueError, "allowed_hosts must be a host name .*, not a:80"),
            ({"allowed_origin": "a"}, ValueError, "allowed_origin must be like https://page.example.org.*, not a"),
            ({"long_poll_timeout": 0}, ValueError, "long_poll_timeout must be more than 0 .*, not 0"),
            ({"heartbeat": float("nan")}, ValueError, "heartbeat must be more than 0 .*, not nan"),
            ({"event_stream_timeout": "60"}, TypeError, "event_stream_timeout must be a number of seconds, not '60'"),
            ({"cache": "shared"}, ValueError, "cache must be one of public, private, no-store, not 'shared'"),
            ({"max_body": 0}, ValueError, "max_body must be at least 1 and less than .*, not 0"),
            ({"max_streams": 1.5}, TypeError, "max_streams must be an int, not 1.5"),
            ({"max_pending": True}, TypeError, "max_pending must be an int, not True"),
            ({"append_rate": 0}, ValueError, "append_rate must be more than 0 and finite, not 0"),
            ({"journal": "a\0b"}, ValueError, "journal must be the path of a folder"),
            ({"instance": "a b"}, ValueError, "instance must be 1 to 100 of .*, not a b"),
            ({"instance": ".."}, ValueError, "instance must be 1 to 100 of .*, not ..$"),
        ],
    )
    def test_bad_arguments_are_refused_by_name(
        self, arguments: dict[str, Any], error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message) as raised:
            durable_streams(**arguments)
        assert "secret" not in str(raised.value)

    def test_defaults_are_those_of_the_command(self) -> None:
        expected = {each.name: getattr(Settings(), each.name) for each in fields(Settings)}
        given = {name: each.default for name, each in inspect.signature(durable_streams).parameters.items()}
        assert set(expected) - set(given) == {"write_timeout", "cool_after", "demo"}
        changed = {"allowed_hosts": None, "instance": None}
        assert given == {**{name: expected[name] for name in given}, **changed}
        assert durable_streams().settings == Settings(allowed_hosts=None)

    def test_folders_may_be_paths(self, tmp_path: Path) -> None:
        settings = durable_streams(data=tmp_path, journal=tmp_path, instance="here").settings
        assert (settings.data, settings.journal, settings.instance) == (str(tmp_path), str(tmp_path), "here")
