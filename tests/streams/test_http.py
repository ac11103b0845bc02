"""Requests to streams beside those of the conformance suite: bad input, limits, live reads, caches, trouble."""

import asyncio
import itertools
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from purgatory.streams.engine.cache import CachedStream
from purgatory.streams.engine.readers import Readers
from purgatory.streams.engine.streams import Streams
from purgatory.streams.http.streams import Polls
from purgatory.streams.storage.database import Extent
from tests.streams.processes import JSON, TEXT, ZERO
from tests.streams.serving import Server, served, until, wait_until

SETTINGS = {"event_stream_timeout": 0.5, "heartbeat": 0.2, "max_units": 1000, "allowed_hosts": ("streams.example",)}
LIVE = pytest.mark.parametrize("live", ["long-poll", "sse"])


def offset(position: int) -> str:
    return f"0000000000000000_{position:016d}"


@contextmanager
def with_stream(folder: Path, **settings: Any) -> Iterator[tuple[Server, httpx.Client]]:
    """A server with these settings, which has a stream `a` of text, and its client."""
    with served(data=str(folder), **settings) as (server, http):
        assert http.put("/v1/stream/a", headers=TEXT).status_code == 201
        yield server, http


names = itertools.count()


@pytest.fixture
def stream(http: httpx.Client) -> str:
    path = f"/v1/stream/text-{next(names)}"
    assert http.put(path, headers=TEXT).status_code == 201
    return path


@pytest.fixture
def messages(http: httpx.Client) -> str:
    path = f"/v1/stream/json-{next(names)}"
    assert http.put(path, headers=JSON).status_code == 201
    return path


def problem(response: httpx.Response) -> str:
    """The reason of a refusal."""
    message: str = response.json()["error"]["message"]
    assert response.headers["x-content-type-options"] == "nosniff"
    return message


BAD: list[tuple[str, str, dict[str, Any], int]] = [
    ("GET", "/nothing", {}, 404),
    ("PUT", "/v1/stream/__ds/nothing", {}, 404),
    ("PUT", "/v1/stream/__ds/subscriptions/", {}, 400),
    ("PUT", "/v1/stream/", {}, 400),
    ("PUT", "/v1/stream/a/%2e%2e/b", {}, 400),
    ("PUT", "/v1/stream/%00", {}, 400),
    ("PUT", "/v1/stream/%ff", {}, 400),
    ("PUT", "/v1/stream/%C0%AF", {}, 400),
    ("GET", "{stream}?live=push&offset=-1", {}, 400),
    ("GET", "{stream}?offset=1", {}, 400),
    ("GET", "{stream}?offset=" + offset(1), {}, 400),
    ("GET", "{stream}?" + "&".join("a" * 101), {}, 400),
    *[
        ("PUT", "/v1/stream/bad", {"headers": headers}, 400)
        for headers in (
            {"Content-Type": "nonsense"},
            {"Content-Type": "text/plain; " + "x" * 1024},
            {"Stream-TTL": "-1"},
            {"Stream-TTL": "99999999999999999999"},
            {"Stream-Expires-At": "tomorrow"},
            {"Stream-Expires-At": "2030-13-01T00:00:00Z"},
            {"Stream-Forked-From": "elsewhere"},
            {"Stream-Fork-Offset": ZERO},
            {"Stream-Forked-From": "/v1/stream/a", "Stream-Fork-Offset": "1"},
        )
    ],
    *[
        ("POST", "{messages}", {"headers": JSON, "content": text}, 400)
        for text in ("[" * 100_000, "[1] 2", "NaN", "\ufeff1", b'"\xff"', b'"\xed\xa0\x80"')
    ],
]


class TestRequests:
    @pytest.mark.parametrize(("method", "target", "sent", "status"), BAD)
    def test_bad_ones_are_refused(
        self, http: httpx.Client, stream: str, messages: str, method: str, target: str, sent: Any, status: int
    ) -> None:
        response = http.request(method, target.format(stream=stream, messages=messages), **sent)
        assert (response.status_code, bool(problem(response))) == (status, True)
        assert http.head("/v1/stream/bad").status_code == 404

    def test_repeated_header_is_refused(self, http: httpx.Client) -> None:
        response = http.put("/v1/stream/twice", headers=[("Stream-TTL", "1"), ("Stream-TTL", "2")])
        assert (response.status_code, problem(response)) == (400, "the header stream-ttl must not be repeated")

    def test_json_is_kept_as_it_is(self, http: httpx.Client, messages: str) -> None:
        text = r'[1e999, 0.10000000000000000001, "\ud800", {"\udfff": 1}, {"a": 1, "a": 2}, ' + "9" * 5000 + "]"
        assert http.post(messages, content=text, headers=JSON).status_code == 204
        assert http.get(messages).text.replace(" ", "") == text.replace(" ", "")


class TestLimits:
    def test_append_beyond_the_length_of_a_stream_is_refused(self, http: httpx.Client, stream: str) -> None:
        statuses = [http.post(stream, content="x" * size, headers=TEXT).status_code for size in (1000, 1)]
        assert statuses == [204, 413]  # official producers take a 403 for a stale epoch
        assert http.get(stream).text == "x" * 1000

    def test_append_of_too_many_messages_is_refused(
        self, http: httpx.Client, messages: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("purgatory.streams.core.messages.MOST", 3)
        refused = http.put("/v1/stream/many", headers=JSON, content="[1,2,3,4]")
        assert (refused.status_code, problem(refused)) == (413, "an append must not have more than 3 messages")
        for body, status in (("[1,2,3]", 204), ("[4,5,6,[]]", 413), ("[[7,8,9,10]]", 204)):
            assert http.post(messages, content=body, headers=JSON).status_code == status
        assert http.get(messages).json() == [1, 2, 3, [7, 8, 9, 10]]

    def test_stream_beyond_max_streams_is_refused(self, tmp_path: Path) -> None:
        with with_stream(tmp_path, max_streams=1) as (_, http):
            assert [http.put(f"/v1/stream/{name}", headers=TEXT).status_code for name in "ab"] == [200, 403]


class TestLiveReads:
    @LIVE
    def test_a_deleted_stream_ends_live_reads(self, tmp_path: Path, live: str) -> None:
        with with_stream(tmp_path) as (server, http):

            async def read() -> list[httpx.Response]:
                async with httpx.AsyncClient(base_url=server.url, timeout=60) as reader:
                    reads = [reader.get(f"/v1/stream/a?live={live}&offset=now") for _ in range(3)]
                    waiting = asyncio.gather(*reads)
                    await until(lambda: server.application.streams.reads.num_delayed == 3)
                    await reader.delete("/v1/stream/a")
                    return await waiting

            status = 404 if live == "long-poll" else 200
            assert [each.status_code for each in asyncio.run(read())] == [status] * 3
            assert http.get("/v1/stream/a").status_code == 404

    def test_streams_of_events_begin_at_once(self, tmp_path: Path) -> None:
        with (
            with_stream(tmp_path, heartbeat=3600.0) as (_, http),
            http.stream("GET", "/v1/stream/a?live=sse&offset=now") as events,
        ):
            assert next(events.iter_lines()) == "event: control"

    def test_streams_of_events_end_after_a_while(self, http: httpx.Client, stream: str) -> None:
        text = http.get(f"{stream}?live=sse&offset=now").text
        assert text.count("event: control") >= 3  # at the beginning, for each heartbeat
        assert "streamClosed" not in text

    def test_clients_that_invent_cursors_fill_no_memory(self, monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
        monkeypatch.setattr("purgatory.streams.http.streams._CURSORS", 3)
        polls = Polls(server.application.streams, (b"cache-control", b"private"))
        assert polls.of(None) is polls.of(None), "long polls share their functions"
        for number in range(10):
            polls.of(str(number))
            assert len(polls._functions) <= 3

    def test_old_data_is_read_from_the_database(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr("purgatory.streams.engine.cache._BYTES", 4000)
        monkeypatch.setattr("purgatory.streams.http.streams.CHUNK", Extent(1000, 4))
        with with_stream(tmp_path) as (_, http):
            text = "".join(f"{number:030}" for number in range(20))
            for begin in range(0, 600, 30):
                http.post("/v1/stream/a", content=text[begin : begin + 30], headers=TEXT)
            found, is_up_to_date = "", False
            while not is_up_to_date:
                response = http.get(f"/v1/stream/a?offset={offset(len(found))}")
                found += response.text
                is_up_to_date = "stream-up-to-date" in response.headers
            assert found == text
            with http.stream("GET", f"/v1/stream/a?live=sse&offset={offset(15)}") as events:
                data, lines = "", events.iter_lines()
                while len(data) < 585:
                    line = next(lines)
                    data += line[5:] if line.startswith("data:") and line[5] != "{" else ""
            assert data == text[15:]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "private, max-age=60"),
        ({"allowed_origin": "*"}, "public, max-age=60"),
        ({"allowed_origin": "*", "cache": "private"}, "private, max-age=60"),
        ({"cache": "public"}, "public, max-age=60"),
        ({"cache": "no-store"}, "no-store"),
    ],
)
def test_caches_keep_what_the_setting_says(tmp_path: Path, settings: dict[str, Any], expected: str) -> None:
    with with_stream(tmp_path, **settings) as (_, http):
        http.put("/v1/stream/brief", headers={**TEXT, "Stream-TTL": "3600"})
        for name, kept in (("a", expected), ("brief", "no-store")):
            http.post(f"/v1/stream/{name}", content="x", headers=TEXT)
            for live in ("", "&live=long-poll"):
                assert http.get(f"/v1/stream/{name}?offset=-1{live}").headers["cache-control"] == kept


class TestOperators:
    def test_list_of_streams_takes_prefix_after_and_limit(self, http: httpx.Client) -> None:
        for name in ("list/a", "list/b", "list/c", "list%_"):
            http.put(f"/v1/stream/{name}")
        found = http.get("/v1/streams", params={"prefix": "list/", "after": "list/a", "limit": 1}).json()["streams"]
        assert [each["path"] for each in found] == ["list/b"]
        assert http.head("/v1/streams").status_code == 200

    def test_metrics_are_exported_as_text(self, http: httpx.Client) -> None:
        assert 'purgatory_lateness_seconds_count{purgatory="read"}' in http.get("/metrics").text
        odd = http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=x"})
        assert odd.headers["content-type"].startswith("text/plain")

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({"Host": "evil.example"}, 400),
            ({"Host": "streams.example:80"}, 200),
            ({"Host": "evil.example", "X-Forwarded-For": "10.0.0.1"}, 400),
            ({"Host": "[::1]"}, 200),
            ({"Host": "[::1]:80"}, 200),
            ({"Host": "streams.example", "Origin": "http://streams.example"}, 200),
            ({"Origin": "http://evil.example"}, 403),
            ({"Sec-Fetch-Site": "cross-site"}, 403),
            ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 403),
            ({"Sec-Fetch-Site": "same-origin"}, 200),
        ],
    )
    def test_foreign_hosts_and_origins_are_refused(
        self, http: httpx.Client, stream: str, headers: dict[str, str], status: int
    ) -> None:
        assert http.get(stream, headers=headers).status_code == status
        if headers.get("Sec-Fetch-Dest") == "document":
            assert http.get("/", headers=headers).status_code == 200, "a link to the page"

    def test_a_preflight_of_a_foreign_origin_allows_nothing(self, http: httpx.Client, stream: str) -> None:
        preflight = http.options(stream, headers={"Origin": "http://evil.example"})
        assert preflight.status_code == 204
        assert "access-control-allow-origin" not in preflight.headers


class TestTrouble:
    def test_fault_of_the_server_is_answered_with_500(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        def fail(*arguments: Any) -> Any:
            raise ZeroDivisionError

        with with_stream(tmp_path) as (server, http):

            async def poll() -> int:
                async with httpx.AsyncClient(base_url=server.url, timeout=60) as reader:
                    poll = asyncio.ensure_future(reader.get("/v1/stream/a?live=long-poll&offset=now"))
                    await until(lambda: server.application.streams.reads.num_delayed == 1)
                    monkeypatch.setattr(CachedStream, "recent_chunk", lambda *arguments: None)
                    monkeypatch.setattr(Readers, "stored", fail)
                    await reader.post("/v1/stream/a", content="x", headers=TEXT)
                    return (await poll).status_code

            assert asyncio.run(poll()) == 500
            monkeypatch.setattr(Streams, "find", fail)
            monkeypatch.setattr(Streams, "run", fail)
            assert http.get("/v1/stream/a").status_code == 500
            assert http.delete("/v1/stream/__ds/subscriptions/a").status_code == 500

    def test_client_that_leaves_while_it_sends_appends_nothing(
        self, server: Server, http: httpx.Client, stream: str
    ) -> None:
        in_progress = server.application.limits.clients
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(f"POST {stream} HTTP/1.1\r\nHost: localhost\r\n".encode())
            client.sendall(b"Content-Type: text/plain\r\nContent-Length: 5\r\n\r\nab")
            wait_until(lambda: len(in_progress))
        wait_until(lambda: not len(in_progress))
        assert http.get(stream).text == ""
