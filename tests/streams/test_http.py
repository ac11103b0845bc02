"""Requests to streams beside those of the conformance suite: bad input, limits, live reads, expiry, restarts."""

import asyncio
import json
import socket
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from purgatory.streams.engine.cache import Known
from purgatory.streams.engine.readers import Readers
from purgatory.streams.engine.streams import Streams
from purgatory.streams.http.streams import Polls
from purgatory.streams.storage.database import Extent
from tests.streams.serving import Server, serving

ZERO = "0000000000000000_0000000000000000"


def offset(position: int) -> str:
    """The offset of a position."""
    return f"0000000000000000_{position:016d}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(
        data=str(tmp_path_factory.mktemp("data")),
        long_poll_timeout=0.3,
        event_stream_timeout=0.5,
        heartbeat=0.2,
        max_body=100_000,
        max_units=1000,
        allowed_hosts=("streams.example",),
    ) as server:
        yield server


names = iter(range(1_000_000))


@pytest.fixture
def stream(http: httpx.Client) -> str:
    """A new stream of text."""
    path = f"/v1/stream/text-{next(names)}"
    assert http.put(path, headers={"Content-Type": "text/plain"}).status_code == 201
    return path


@pytest.fixture
def messages(http: httpx.Client) -> str:
    """A new stream of JSON."""
    path = f"/v1/stream/json-{next(names)}"
    assert http.put(path, headers={"Content-Type": "application/json"}).status_code == 201
    return path


def append(http: httpx.Client, path: str, text: str, kind: str = "text/plain", **headers: str) -> httpx.Response:
    return http.post(path, content=text, headers={"Content-Type": kind, **headers})


def problem(response: httpx.Response) -> str:
    """The reason of a refusal."""
    message: str = response.json()["error"]["message"]
    assert response.headers["x-content-type-options"] == "nosniff"
    return message


class TestBadRequests:
    @pytest.mark.parametrize(
        ("path", "status"),
        [
            ("/v1/stream/", 400),
            ("/v1/stream/a//b", 400),
            ("/v1/stream/a/%2e%2e/b", 400),
            ("/v1/stream/" + "a" * 1025, 400),
            ("/v1/stream/%00", 400),
            ("/v1/stream/%ff", 400),
            ("/v1/stream/__ds", 400),
            ("/v1/stream/__ds/nothing", 404),
            ("/v1/stream/__ds/subscriptions/", 400),
            ("/nothing", 404),
        ],
    )
    def test_bad_paths_are_refused(self, http: httpx.Client, path: str, status: int) -> None:
        response = http.put(path)
        assert (response.status_code, bool(problem(response))) == (status, True)

    @pytest.mark.parametrize(
        "headers",
        [
            {"Content-Type": "nonsense"},
            {"Content-Type": "text/plain; " + "x" * 1024},
            {"Stream-TTL": "-1"},
            {"Stream-TTL": "99999999999999999999"},
            {"Stream-Expires-At": "tomorrow"},
            {"Stream-Expires-At": "2030-13-01T00:00:00Z"},
            {"Stream-Forked-From": "elsewhere"},
            {"Stream-Fork-Offset": ZERO},
            {"Stream-Forked-From": "/v1/stream/a", "Stream-Fork-Offset": "1"},
        ],
    )
    def test_bad_headers_of_a_new_stream_are_refused(self, http: httpx.Client, headers: dict[str, str]) -> None:
        response = http.put("/v1/stream/bad", headers=headers)
        assert (response.status_code, bool(problem(response))) == (400, True)
        assert http.head("/v1/stream/bad").status_code == 404

    def test_repeated_header_is_refused(self, http: httpx.Client) -> None:
        response = http.put("/v1/stream/twice", headers=[("Stream-TTL", "1"), ("Stream-TTL", "2")])
        assert (response.status_code, problem(response)) == (400, "the header stream-ttl is repeated")

    @pytest.mark.parametrize("query", ["live=push&offset=-1", "offset=1", "&".join("a" for _ in range(101))])
    def test_bad_queries_are_refused(self, http: httpx.Client, stream: str, query: str) -> None:
        response = http.get(f"{stream}?{query}")
        assert (response.status_code, bool(problem(response))) == (400, True)

    def test_offset_beyond_the_end_is_refused(self, http: httpx.Client, stream: str) -> None:
        assert http.get(f"{stream}?offset={offset(1)}").status_code == 400

    @pytest.mark.parametrize("text", ["[" * 100_000, "[1] 2", "NaN", "[1,]", "\ufeff1", '"\\x"'])
    def test_text_that_is_not_json_is_refused(self, http: httpx.Client, messages: str, text: str) -> None:
        response = append(http, messages, text, "application/json")
        assert (response.status_code, bool(problem(response))) == (400, True)

    def test_json_numbers_are_kept_as_they_are(self, http: httpx.Client, messages: str) -> None:
        text = "[1e999, 0.10000000000000000001, " + "9" * 5000 + "]"
        assert append(http, messages, text, "application/json").status_code == 204
        assert http.get(messages).text.replace(" ", "") == text.replace(" ", "")

    def test_long_poll_at_the_end_of_a_closed_stream_is_answered_at_once(self, http: httpx.Client, stream: str) -> None:
        http.post(stream, headers={"Stream-Closed": "true"})
        for place in ("now", ZERO):
            response = http.get(f"{stream}?live=long-poll&offset={place}")
            assert (response.status_code, response.headers["stream-closed"]) == (204, "true")

    def test_unknown_method_is_refused_with_the_allowed_ones(self, http: httpx.Client, stream: str) -> None:
        response = http.patch(stream)
        assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD, PUT, POST, DELETE, OPTIONS")


class TestLimits:
    def test_body_that_is_too_long_is_refused(self, http: httpx.Client, stream: str) -> None:
        assert append(http, stream, "x" * 100_001).status_code == 413

        def chunks() -> Iterator[bytes]:
            for _ in range(101):
                yield b"x" * 1000

        response = http.post(stream, content=chunks(), headers={"Content-Type": "text/plain"})
        assert (response.status_code, problem(response)) == (413, "the body has more than 100000 bytes")

    def test_append_beyond_the_length_of_a_stream_is_refused(self, http: httpx.Client, stream: str) -> None:
        assert append(http, stream, "x" * 1000).status_code == 204
        assert append(http, stream, "x").status_code == 413  # official producers take a 403 for a stale epoch
        assert http.get(stream).text == "x" * 1000

    def test_stream_beyond_max_streams_is_refused(self, tmp_path: Path) -> None:
        with serving(data=str(tmp_path), max_streams=1) as server, httpx.Client(base_url=server.url) as http:
            assert [http.put(f"/v1/stream/{name}").status_code for name in "aba"] == [201, 403, 200]

    def test_read_beyond_max_pending_is_refused(self, tmp_path: Path) -> None:
        with serving(data=str(tmp_path), max_pending=1) as server, httpx.Client(base_url=server.url) as http:
            http.put("/v1/stream/a")
            with http.stream("GET", f"/v1/stream/a?live=sse&offset={ZERO}") as waiting:
                lines = waiting.iter_lines()
                assert next(lines) == "event: control"
                wait_for(server.application.streams, 1)
                response = http.get(f"/v1/stream/a?live=long-poll&offset={ZERO}")
                assert (response.status_code, response.headers["retry-after"]) == (503, "1")


def wait_for(streams: Streams, count: int) -> None:
    """Return when so many reads wait."""
    end = time.monotonic() + 30
    while streams.reads.num_delayed != count:
        assert time.monotonic() < end
        time.sleep(0.01)


class TestLiveReads:
    def test_a_deleted_stream_ends_long_polls(self, tmp_path: Path) -> None:
        with serving(data=str(tmp_path)) as server, httpx.Client(base_url=server.url, timeout=60) as http:
            http.put("/v1/stream/a")
            results: list[Any] = []

            async def poll() -> None:
                async with httpx.AsyncClient(base_url=server.url, timeout=60) as reader:
                    polls = [reader.get("/v1/stream/a?live=long-poll&offset=now") for _ in range(3)]
                    waiting = asyncio.gather(*polls)
                    await asyncio.to_thread(wait_for, server.application.streams, 3)
                    await reader.delete("/v1/stream/a")
                    results.extend(each.status_code for each in await waiting)

            asyncio.run(poll())
            assert results == [404, 404, 404]
            assert http.get("/v1/stream/a").status_code == 404
            assert http.put("/v1/stream/a").status_code == 201

    def test_a_deleted_stream_ends_streams_of_events(self, http: httpx.Client, stream: str) -> None:
        with http.stream("GET", f"{stream}?live=sse&offset=-1") as response:
            lines = response.iter_lines()
            assert [next(lines), json.loads(next(lines)[5:])["upToDate"]] == ["event: control", True]
            http.delete(stream)
            list(lines)

    def test_streams_of_events_end_after_a_while(self, http: httpx.Client, stream: str) -> None:
        with http.stream("GET", f"{stream}?live=sse&offset=now") as response:
            text = response.read().decode()
        assert text.count("event: control") >= 3  # at the beginning, for each heartbeat
        assert "streamClosed" not in text

    def test_shutdown_answers_all_waiting_reads(self, tmp_path: Path) -> None:
        with serving(data=str(tmp_path)) as server, httpx.Client(base_url=server.url, timeout=60) as http:
            http.put("/v1/stream/a")

            async def poll() -> list[int]:
                async with httpx.AsyncClient(base_url=server.url, timeout=60) as reader:
                    urls = [f"/v1/stream/a?live={live}&offset=now" for live in ("long-poll", "sse")]
                    waiting = asyncio.gather(*(reader.get(url) for url in urls))
                    await asyncio.to_thread(wait_for, server.application.streams, 2)
                    server.should_exit = True
                    return [each.status_code for each in await waiting]

            assert asyncio.run(poll()) == [204, 200]


class TestMemory:
    def test_long_polls_with_a_cursor_share_their_functions(
        self, monkeypatch: pytest.MonkeyPatch, server: Server
    ) -> None:
        monkeypatch.setattr("purgatory.streams.http.streams._CURSORS", 3)
        polls = Polls(server.application.streams, (b"cache-control", b"private"))
        assert polls.of(None) is polls.of(None)
        for number in range(10):  # a client may invent them
            polls.of(str(number))
            assert len(polls._functions) <= 3

    def test_old_data_is_read_from_the_database(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr("purgatory.streams.engine.cache._BYTES", 4000)
        monkeypatch.setattr("purgatory.streams.engine.cache._KNOWN", 2)
        monkeypatch.setattr("purgatory.streams.http.streams.CHUNK", Extent(1000, 4))
        with serving(data=str(tmp_path)) as server, httpx.Client(base_url=server.url, timeout=60) as http:
            expected = {}
            for name in "abcd":
                http.put(f"/v1/stream/{name}", headers={"Content-Type": "text/plain"})
                expected[name] = [f"{name}{number:029}" for number in range(20)]
                for text in expected[name]:
                    append(http, f"/v1/stream/{name}", text)
            streams = server.application.streams
            assert len(streams.cache) <= 2
            assert (
                streams.cache._size
                == sum(known.size + known.own_size for known in streams.cache._known.values())
                <= 4000
            )
            for name, texts in expected.items():
                position, found = 0, []
                while position < 600:
                    response = http.get(f"/v1/stream/{name}?offset={offset(position)}")
                    assert ("stream-up-to-date" in response.headers) == (position + len(response.text) == 600)
                    found.append(response.text)
                    position += len(response.text)
                assert "".join(found) == "".join(texts)
                with http.stream("GET", f"/v1/stream/{name}?live=sse&offset={offset(15)}") as response:
                    data, lines = "", response.iter_lines()
                    while len(data) < 585:
                        line = next(lines)
                        data += line[5:] if line.startswith("data:") and line[5] != "{" else ""
                assert data == "".join(texts)[15:]


def test_append_of_too_many_messages_is_refused(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purgatory.streams.core.messages.MOST", 3)
    path = f"/v1/stream/json-{next(names)}"
    json = {"Content-Type": "application/json"}
    refused = http.put(path, headers=json, content="[1,2,3,4]")
    assert (refused.status_code, problem(refused)) == (413, "an append must not have more than 3 messages")
    assert http.put(path, headers=json, content="[1,2,3]").status_code == 201
    for body, status in (("[4,5,6]", 204), ("[7,8,9,[]]", 413), ("[[7,8,9,10]]", 204)):
        assert append(http, path, body, "application/json").status_code == status
    assert http.get(path).json() == [1, 2, 3, 4, 5, 6, [7, 8, 9, 10]]


class TestExpiry:
    def test_reads_prolong_a_time_to_live(self, tmp_path: Path) -> None:
        with serving(data=str(tmp_path)) as server, httpx.Client(base_url=server.url, timeout=60) as http:
            for name in "ab":
                http.put(f"/v1/stream/{name}", headers={"Stream-TTL": "2"})
            end = time.monotonic() + 4
            while time.monotonic() < end:
                assert http.get("/v1/stream/a").status_code == 200
                time.sleep(0.1)
            assert http.get("/v1/stream/b").status_code == 404
            assert http.get("/v1/streams").json()["streams"][0]["path"] == "a"
            listed = server.application.streams.cache._known
            assert listed["b"].gone

    @pytest.mark.parametrize("live", ["sse", "long-poll"])
    def test_a_stream_with_live_readers_does_not_expire(self, tmp_path: Path, live: str) -> None:
        with serving(data=str(tmp_path)) as server, httpx.Client(base_url=server.url, timeout=60) as http:
            for name in "ab":
                http.put(f"/v1/stream/{name}", headers={"Stream-TTL": "3", "Content-Type": "text/plain"})
            query = {"offset": ZERO, "live": live}
            end = time.monotonic() + 8
            if live == "sse":
                with http.stream("GET", "/v1/stream/a", params=query) as events:
                    for line in events.iter_lines():
                        assert line in ("", "event: control") or "upToDate" in line
                        if time.monotonic() > end:
                            break
            else:
                while time.monotonic() < end:
                    assert http.get("/v1/stream/a", params=query).status_code == 204
            assert http.head("/v1/stream/a").status_code == 200
            assert http.head("/v1/stream/b").status_code == 404
            assert http.get("/v1/stream/a").headers["cache-control"] == "no-store"

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
    def test_caches_keep_what_the_setting_says(self, tmp_path: Path, settings: dict[str, Any], expected: str) -> None:
        with serving(data=str(tmp_path), **settings) as server, httpx.Client(base_url=server.url) as http:
            http.put("/v1/stream/a", content="x", headers={"Content-Type": "text/plain"})
            for live in ("", "&live=long-poll"):
                assert http.get(f"/v1/stream/a?offset=-1{live}").headers["cache-control"] == expected

    def test_expiry_survives_a_restart(self, tmp_path: Path) -> None:
        with serving(data=str(tmp_path)) as server, httpx.Client(base_url=server.url) as http:
            http.put("/v1/stream/a", headers={"Stream-TTL": "1"})
            http.put("/v1/stream/b", headers={"Stream-TTL": "1000"})
        time.sleep(1.1)
        with serving(data=str(tmp_path)) as server, httpx.Client(base_url=server.url) as http:
            assert [http.head(f"/v1/stream/{name}").status_code for name in "ab"] == [404, 200]


class TestRestart:
    def test_streams_forks_and_closes_survive_a_restart(self, tmp_path: Path) -> None:
        producer = {"Producer-Id": "p", "Producer-Epoch": "0"}
        with serving(data=str(tmp_path)) as server, httpx.Client(base_url=server.url) as http:
            http.put("/v1/stream/a", headers={"Content-Type": "text/plain"})
            assert append(http, "/v1/stream/a", "hello", **producer, **{"Producer-Seq": "0"}).status_code == 200
            http.put("/v1/stream/b", headers={"Stream-Forked-From": "/v1/stream/a"})
            http.delete("/v1/stream/a")
        with serving(data=str(tmp_path)) as server, httpx.Client(base_url=server.url) as http:
            assert http.get("/v1/stream/a").status_code == 410
            assert http.get("/v1/stream/b").text == "hello"
            assert append(http, "/v1/stream/b", " world", **{"Stream-Closed": "True"}).status_code == 204
            assert http.put("/v1/stream/c").headers["stream-next-offset"] == ZERO
        with serving(data=str(tmp_path)) as server, httpx.Client(base_url=server.url) as http:
            assert http.get("/v1/stream/b").text == "hello world"
            assert http.head("/v1/stream/b").headers["stream-closed"] == "true"
            assert http.delete("/v1/stream/b").status_code == 204
            assert http.get("/v1/stream/a").status_code == 404
            assert http.get("/health").json()["streams"] == 1


class TestOperators:
    def test_list_of_streams_takes_prefix_after_and_limit(self, http: httpx.Client) -> None:
        for name in ("list/a", "list/b", "list/c", "list%_"):
            http.put(f"/v1/stream/{name}")
        found = http.get("/v1/streams", params={"prefix": "list/", "after": "list/a", "limit": 1}).json()["streams"]
        assert [each["path"] for each in found] == ["list/b"]
        assert http.get("/v1/streams?limit=0").status_code == 400
        assert http.head("/v1/streams").status_code == 200
        assert http.post("/v1/streams").status_code == 405

    def test_metrics_are_exported_as_text(self, http: httpx.Client) -> None:
        assert 'purgatory_lateness_seconds_count{purgatory="read"}' in http.get("/metrics").text
        odd = http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=x"})
        assert odd.headers["content-type"].startswith("text/plain")

    def test_foreign_hosts_and_origins_are_refused(self, http: httpx.Client, stream: str) -> None:
        def status(**headers: str) -> int:
            return http.get(
                stream, headers={name.replace("_", "-"): value for name, value in headers.items()}
            ).status_code

        assert status(Host="evil.example") == 400
        assert status(Host="streams.example:80") == status(Host="[::1]:80") == 200
        assert status(Origin="http://evil.example") == status(Sec_Fetch_Site="cross-site") == 403
        assert status(Origin=str(http.base_url).rstrip("/")) == status(Sec_Fetch_Site="same-origin") == 200
        link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        assert http.get("/", headers=link).status_code == 200
        assert http.get(stream, headers=link).status_code == 403
        preflight = http.options(stream, headers={"Origin": "http://evil.example"})
        assert preflight.status_code == 204
        assert "access-control-allow-origin" not in preflight.headers

    @pytest.mark.parametrize(("allowed", "status"), [("*", 200), ("http://page.example", 200), ("http://x", 403)])
    def test_allowed_origins_are_answered_and_others_refused(self, tmp_path: Path, allowed: str, status: int) -> None:
        with serving(data=str(tmp_path), allowed_origin=allowed) as server:
            response = httpx.get(f"{server.url}/v1/streams", headers={"Origin": "http://page.example"})
            assert response.status_code == status


class TestTrouble:
    def test_fault_of_the_server_is_answered_with_500(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        with serving(data=str(tmp_path)) as server, httpx.Client(base_url=server.url, timeout=60) as http:
            http.put("/v1/stream/a", headers={"Content-Type": "text/plain"})

            def fail(*arguments: Any) -> Any:
                raise ZeroDivisionError

            polled: list[httpx.Response] = []

            async def poll() -> None:
                async with httpx.AsyncClient(base_url=server.url, timeout=60) as reader:
                    poll = asyncio.ensure_future(reader.get("/v1/stream/a?live=long-poll&offset=now"))
                    await asyncio.to_thread(wait_for, server.application.streams, 1)
                    monkeypatch.setattr(Known, "recent_chunk", lambda *arguments: None)
                    monkeypatch.setattr(Readers, "stored", fail)
                    await reader.post("/v1/stream/a", content="x", headers={"Content-Type": "text/plain"})
                    polled.append(await poll)

            asyncio.run(poll())
            assert polled[0].status_code == 500
            monkeypatch.setattr(Streams, "find", fail)
            monkeypatch.setattr(Streams, "run", fail)
            assert http.get("/v1/stream/a").status_code == 500
            assert http.delete("/v1/stream/__ds/subscriptions/a").status_code == 500

    def test_client_that_leaves_while_it_sends_appends_nothing(
        self, server: Server, http: httpx.Client, stream: str
    ) -> None:
        port = int(server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(f"POST {stream} HTTP/1.1\r\nHost: localhost\r\n".encode())
            client.sendall(b"Content-Type: text/plain\r\nContent-Length: 5\r\n\r\nab")
            time.sleep(0.2)
        time.sleep(0.2)
        assert http.get(stream).text == ""

    def test_append_on_a_full_disk_is_answered_with_507(self, tmp_path: Path) -> None:
        with serving(data=str(tmp_path)) as server, httpx.Client(base_url=server.url, timeout=60) as http:
            http.put("/v1/stream/a", headers={"Content-Type": "text/plain"})
            writing: Any = server.application.streams.store._writing
            writing.connection.execute("PRAGMA max_page_count = 1")
            found = [append(http, "/v1/stream/a", "x" * 90_000).status_code for _ in range(3)]
            assert found == [507, 507, 507]
            writing.connection.execute("PRAGMA max_page_count = 1000000")
            assert append(http, "/v1/stream/a", "y").status_code == 204
            assert http.get("/v1/stream/a").text == "y"

    def test_append_to_a_broken_database_is_answered_with_500(self, tmp_path: Path) -> None:
        with serving(data=str(tmp_path)) as server, httpx.Client(base_url=server.url, timeout=60) as http:
            http.put("/v1/stream/a", headers={"Content-Type": "text/plain"})
            with sqlite3.connect(tmp_path / "streams.sqlite") as other:
                other.execute("DROP TABLE data")
            assert append(http, "/v1/stream/a", "x").status_code == 500
            assert http.get("/v1/stream/a").text == ""
