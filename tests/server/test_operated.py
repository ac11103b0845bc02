"""The metrics, the journal and the quotas of the long-poll server, in a real process over real HTTP."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from prometheus_client.core import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from examples.long_poll_server.quotas import Quotas
from tests.support.journals import partitions, read
from tests.support.server_process import fetch, publish, running, statistics, until_waiting

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def _scrape(client: httpx.AsyncClient) -> Samples:
    response = await client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def _of(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


class TestMetrics:
    async def test_metrics_agree_with_statistics(self, tmp_path: Path) -> None:
        with running(tmp_path) as server:
            async with server.client() as client:
                polls = [asyncio.create_task(fetch(client, "news", wait=300)) for _ in range(3)]
                await until_waiting(client, 3)
                await publish(client, "news", "hello")
                await asyncio.gather(*polls)
                await fetch(client, "news", offset=1, wait=0.05)
                waiting = asyncio.create_task(fetch(client, "other", wait=300))
                await until_waiting(client, 1)
                samples = await _scrape(client)
                told = await statistics(client)
                waiting.cancel()
        for outcome in ("completed_at_once", "satisfied", "expired", "closed", "cancelled", "failed"):
            counted = _of(samples, "purgatory_operations_total", purgatory="fetch", outcome=outcome)
            assert counted == told[outcome], outcome
        assert (told["satisfied"], told["expired"]) == (3, 1)
        assert _of(samples, "purgatory_missed_operations_total", purgatory="fetch") == told["missed"]
        assert _of(samples, "purgatory_delayed_operations", purgatory="fetch") == 1
        assert _of(samples, "purgatory_watched_entries", purgatory="fetch") == told["watched"]
        assert _of(samples, "purgatory_wait_seconds_count", purgatory="fetch", outcome="satisfied") == 3
        waited = _of(samples, "purgatory_wait_seconds_sum", purgatory="fetch", outcome="expired")
        assert 0.05 - 1e-9 <= waited < 60  # the difference of two times as `float`
        assert _of(samples, "purgatory_lateness_seconds_count", purgatory="fetch") == 1
        assert _of(samples, "purgatory_longest_slice_seconds", purgatory="fetch") > 0
        in_wheels = [
            value
            for (name, labels), value in samples.items()
            if name == "purgatory_timer_tasks" and ("purgatory", "fetch") in labels
        ]
        assert sum(in_wheels) == 1
        assert _of(samples, "process_open_fds") > 0

    @pytest.mark.parametrize("accept", ["text/plain; version=x", "application/openmetrics-text; version=1.x", "x;;=,"])
    async def test_an_unknown_format_is_answered_with_text(self, tmp_path: Path, accept: str) -> None:
        with running(tmp_path) as server:
            async with server.client() as client:
                response = await client.get("/metrics", headers={"Accept": accept})
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/plain; version=")

    async def test_openmetrics_is_answered_on_request(self, tmp_path: Path) -> None:
        with running(tmp_path) as server:
            async with server.client() as client:
                response = await client.get(
                    "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
                )
        assert response.headers["content-type"].startswith("application/openmetrics-text")
        parse: Callable[[str], Iterable[Metric]] = openmetrics.text_string_to_metric_families
        families = {family.name: family.type for family in parse(response.text)}
        assert families["purgatory_operations"] == "counter"
        assert families["purgatory_wait_seconds"] == "histogram"


class TestJournal:
    async def test_journal_has_row_for_each_request_with_or_without_wait(self, tmp_path: Path) -> None:
        journal = tmp_path / "journal"
        with running(tmp_path / "data", "--journal", str(journal), "--instance", "web-1") as server:
            async with server.client() as client:
                poll = asyncio.create_task(fetch(client, "news", wait=300))
                await until_waiting(client, 1)
                await publish(client, "news", "hello")
                await poll
                await fetch(client, "news", wait=10)
                await fetch(client, "other", wait=0.05)
                await client.post("/topics/acked/messages?acks=1&timeout=0.05", json={"value": 1})
                left = asyncio.create_task(fetch(client, "left", wait=300))
                await until_waiting(client, 1)
                samples = await _scrape(client)
                assert _of(samples, "purgatory_journal_queued_rows", instance="web-1") == 4
                assert _of(samples, "purgatory_journal_dropped_rows_total", instance="web-1") == 0
                # Shutdown closes the purgatory, which answers the fetch, and then the journal.
                assert await asyncio.to_thread(server.stop) == 0
                await left
        rows = sorted(read(journal), key=lambda row: (row["purgatory"], row["keys"], row["outcome"]))
        assert [(row["purgatory"], row["operation"], row["keys"], row["outcome"]) for row in rows] == [
            ("fetch", "DelayedFetch", ["left"], "closed"),
            ("fetch", "DelayedFetch", ["news"], "completed_at_once"),
            ("fetch", "DelayedFetch", ["news"], "satisfied"),
            ("fetch", "DelayedFetch", ["other"], "expired"),
            ("produce", "DelayedProduce", ["acked"], "expired"),
        ]
        # A long wait is a little shorter, so that not all come back at once, and has a bound.
        for row, most in zip(rows, (50, 10, 50, 0.05, 0.05), strict=True):
            assert most * (15 / 16 if most > 1 else 1) <= row["timeout_s"] <= most
        assert all((row["late_s"] is not None) == (row["outcome"] == "expired") for row in rows)
        assert sum(count for *_, count in partitions(journal)) == 5
        assert {instance for _, instance, _ in partitions(journal)} == {"web-1"}


class TestQuotas:
    async def test_a_client_that_publishes_too_fast_waits_for_the_answer(self, tmp_path: Path) -> None:
        with running(tmp_path, "--publish-rate", "2") as server:
            async with server.client() as client:
                loop = asyncio.get_running_loop()
                began = loop.time()
                for number in range(5):
                    await publish(client, "news", number)
                # Two at once, for a second's worth is free, and the rest at the rate.
                assert loop.time() - began >= 3 / 2
                throttled = await statistics(client, "throttle")
                assert 1 <= throttled["expired"] <= 3
                values, _ = await fetch(client, "news", max_messages=100)
                assert values == list(range(5)), "none is lost"

    async def test_a_client_far_beyond_its_quota_gets_a_429_with_retry_after(self, tmp_path: Path) -> None:
        with running(tmp_path, "--publish-rate", "0.1") as server:
            async with server.client() as client:
                posts = [asyncio.create_task(client.post("/topics/news/messages", json={"value": 1})) for _ in range(6)]
                refused, waiting = await asyncio.wait(posts, return_when=asyncio.FIRST_COMPLETED)
                while len(refused) < 4:
                    refused, waiting = await asyncio.wait(posts, return_when=asyncio.FIRST_COMPLETED, timeout=0)
                # The first is free.
                (response, *_), (taken,) = (
                    [done.result() for done in refused if done.result().status_code == status] for status in (429, 201)
                )
                assert taken.json()["offset"] in range(3), "bodies are read in any order"
                assert (response.status_code, response.json()) == (429, {"error": "more than 0.1 messages a second"})
                assert 0 < int(response.headers["retry-after"]) <= 10
                await until_waiting(client, 2, "throttle")
                # A client that waits for its quota is answered when the server stops; one that has gone is forgotten.
                waiting.pop().cancel()
                await until_waiting(client, 1, "throttle")
                assert await asyncio.to_thread(server.stop) == 0
                answers = await asyncio.gather(*waiting)
        assert [answer.status_code for answer in answers] == [201]

    async def test_a_refusal_comes_before_the_body_is_read(self, tmp_path: Path) -> None:
        with running(tmp_path, "--publish-rate", "0.01") as server:
            async with server.client() as client:
                await publish(client, "news", "the first is free")
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port)
            head = "POST /topics/news/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
            writer.write(f"{head}Expect: 100-continue\r\n\r\n".encode())
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 429 ")
            writer.close()

    async def test_a_publish_that_cannot_wait_is_answered_at_once_as_it_is_stored(self, tmp_path: Path) -> None:
        with running(tmp_path, "--publish-rate", "2", "--max-pending", "1") as server:
            async with server.client() as client:
                posts = [client.post("/topics/news/messages", json={"value": number}) for number in range(5)]
                answers = await asyncio.gather(*posts)
                assert [answer.status_code for answer in answers] == [201] * 5
                values, _ = await fetch(client, "news")
        assert sorted(values) == list(range(5))

    async def test_a_client_may_be_ahead_by_a_second(self) -> None:
        quotas = Quotas(10.0)
        for _ in range(10):
            assert quotas.delay("a", 100.0) == 0.0
            quotas.publish("a", 100.0)
        assert quotas.delay("a", 100.0) == pytest.approx(0.1)
        assert quotas.delay("b", 100.0) == 0.0
        assert quotas.delay("a", 100.1) == pytest.approx(0.0)
        quotas.publish("a", 200.0)
        assert quotas.delay("a", 200.0) == 0.0
        assert len(quotas) == 1
        quotas.close()

    async def test_the_first_message_is_free_however_low_the_rate(self) -> None:
        quotas = Quotas(0.01)
        assert quotas.delay("a", 100.0) == 0.0
        quotas.publish("a", 100.0)
        assert quotas.delay("a", 100.0) == pytest.approx(199)
        assert quotas.delay("a", 200.0) == 0.0
        quotas.close()
