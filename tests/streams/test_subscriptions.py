"""Subscriptions: the core by virtual time, and the endpoint with real webhooks."""

import asyncio
import json
import time
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

import httpx
import jwt
import pytest
from aiohttp import web

from purgatory.streams.core import subscriptions as core
from purgatory.streams.core.commands import Append, Command, Create, Delete
from purgatory.streams.core.errors import Forbidden, Invalid
from purgatory.streams.core.globs import Glob
from purgatory.streams.core.messages import JSON
from purgatory.streams.core.offsets import encode
from purgatory.streams.core.state import Link
from purgatory.streams.core.transaction import Transaction
from purgatory.streams.http.addresses import Resolver, UrlRejected, check_url, is_public
from purgatory.streams.storage.database import StorageError
from tests.streams.memory import Memory
from tests.streams.serving import Server, serving

T = TypeVar("T")


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("a/*", "a/b", True),
        ("a/*", "a/b/c", False),
        ("a/*", "a", False),
        ("*/b", "a/b", True),
        ("a/**", "a", True),
        ("a/**", "a/b/c", True),
        ("**", "a/b", True),
        ("a/**/z", "a/z", True),
        ("a/**/z", "a/b/c/z", True),
        ("a/**/z", "a/b/c", False),
        ("b", "a", False),
        ("b/c", "a/c", False),
        ("a.c", "abc", False),
    ],
)
def test_pattern_matches_whole_segments_of_a_path(pattern: str, path: str, expected: bool) -> None:
    assert Glob(pattern).matches(path) is expected


class Core:
    """Commands on streams in memory, with a clock of their own."""

    def __init__(self) -> None:
        self.source = Memory()
        self.now = 1000.0

    def run(self, command: Command[T]) -> T:
        transaction = Transaction(self.source, self.now)
        try:
            return command.apply(transaction)
        finally:
            self.source.store(transaction)

    def subscribe(self, kind: str = "pull-wake", pattern: str | None = "e/*", *streams: str) -> core.View:
        url = "https://a.example" if kind == "webhook" else None
        wake_stream = None if kind == "webhook" else "wakes"
        return self.run(core.Subscribe("s", kind, pattern, streams, url, wake_stream, 10.0, None))

    def wakes(self) -> list[Any]:
        """The events of the wake stream."""
        stream = self.source.stream("wakes")
        assert stream is not None
        return [json.loads(row.data) for row in self.source.rows.get(stream.id, [])]

    def acked(self) -> dict[str, int]:
        return {path: link.acked for path, link in self.source.links("s").items()}

    def wake(self) -> tuple[str, str, int, tuple[int, int]]:
        """The arguments of a worker's commands."""
        subscription = self.source.known["s"]
        token = subscription.incarnation, subscription.generation
        return subscription.type, subscription.wake or "", subscription.generation, token


@pytest.fixture
def streams() -> Core:
    """With a stream for wakes."""
    found = Core()
    found.run(Create("wakes", JSON))
    return found


class TestWakes:
    def test_streams_that_are_there_begin_at_their_tail(self, streams: Core) -> None:
        streams.run(Create("e/1", "text/plain", body=b"old"))
        streams.run(Create("other", "text/plain", body=b"old"))
        assert streams.subscribe().new
        assert streams.acked() == {"e/1": 3}
        assert streams.wakes() == []
        streams.run(Append("e/1", "text/plain", b"!"))
        streams.run(Append("other", "text/plain", b"!"))
        (wake,) = streams.wakes()
        assert (wake["subscription_id"], wake["stream"], wake["generation"]) == ("s", "e/1", 1)

    def test_streams_that_come_begin_at_their_beginning(self, streams: Core) -> None:
        streams.subscribe()
        streams.run(Create("e/1", "text/plain"))
        assert streams.wakes() == []
        streams.run(Append("e/1", "text/plain", b"!"))
        assert streams.acked() == {"e/1": -1}
        assert len(streams.wakes()) == 1
        streams.run(Append("e/1", "text/plain", b"!"))
        assert len(streams.wakes()) == 1  # it is under way

    @pytest.mark.parametrize("end", ["acked", "lapsed", "released"])
    def test_a_wake_that_ends_with_work_left_is_followed_by_another(self, streams: Core, end: str) -> None:
        streams.subscribe()
        streams.run(Create("e/1", "text/plain", body=b"ab"))
        streams.run(core.Claim("s", "worker"))
        first = streams.wake()
        if end == "acked":
            assert streams.run(core.Acknowledge("s", *first, (("e/1", encode(1)),), True))
        elif end == "released":
            streams.run(core.Release("s", *first))
        else:
            streams.now += 9.9
            streams.run(core.Lapse("s"))
            assert streams.wake() == first
            streams.run(core.Acknowledge("s", *first))  # a heartbeat
            streams.now += 9.9
            streams.run(core.Lapse("s"))
            assert streams.wake() == first
            streams.now += 0.2
            streams.run(core.Lapse("s"))
        assert [each["generation"] for each in streams.wakes()] == [1, 2]
        with pytest.raises(core.Fenced):
            streams.run(core.Acknowledge("s", *first))
        with pytest.raises(core.Fenced):
            streams.run(core.Release("s", *first))

    def test_wake_that_ends_with_nothing_left_cannot_be_claimed(self, streams: Core) -> None:
        streams.subscribe()
        streams.run(Create("e/1", "text/plain", body=b"ab"))
        view = streams.run(core.Claim("s", "worker"))
        assert [each.whole() for each in view.streams] == [
            {
                "path": "e/1",
                "link_type": "glob",
                "acked_offset": "-1",
                "tail_offset": encode(2),
                "has_pending": True,
            }
        ]
        assert not streams.run(core.Acknowledge("s", *streams.wake(), (("e/1", encode(2)),), True))
        with pytest.raises(core.NoPendingWork):
            streams.run(core.Claim("s", "worker"))
        assert len(streams.wakes()) == 1

    def test_claimed_subscription_cannot_be_claimed_by_another(self, streams: Core) -> None:
        streams.subscribe()
        streams.run(Create("e/1", "text/plain", body=b"ab"))
        streams.run(core.Claim("s", "one"))
        with pytest.raises(core.AlreadyClaimed) as caught:
            streams.run(core.Claim("s", "two"))
        assert (caught.value.holder, caught.value.generation) == ("one", 1)
        with pytest.raises(core.SubscriptionNotFound):
            streams.run(core.Claim("t", "two"))

    def test_wakes_without_a_stream_can_be_claimed(self) -> None:
        streams = Core()
        streams.subscribe()
        streams.run(Create("e/1", "text/plain", body=b"ab"))
        assert streams.run(core.Claim("s", "worker")).subscription.generation == 1
        streams.run(core.Release("s", *streams.wake()))
        # A wake is under way again, though no stream has it.
        assert streams.run(core.Claim("s", "worker")).subscription.generation == 2

    @pytest.mark.parametrize(
        ("path", "offset"),
        [("e/2", encode(0)), ("e/1", "-1"), ("e/1", encode(3)), ("e/1", "x")],
    )
    def test_offsets_that_cannot_be_acknowledged_change_nothing(self, streams: Core, path: str, offset: str) -> None:
        streams.subscribe()
        streams.run(Create("e/1", "text/plain", body=b"ab"))
        streams.run(core.Claim("s", "worker"))
        with pytest.raises(core.InvalidOffset):
            streams.run(core.Acknowledge("s", *streams.wake(), (("e/1", encode(1)), (path, offset)), True))
        assert streams.acked() == {"e/1": -1}

    def test_offsets_do_not_go_back(self, streams: Core) -> None:
        streams.subscribe()
        streams.run(Create("e/1", "text/plain", body=b"ab"))
        streams.run(core.Claim("s", "worker"))
        streams.run(core.Acknowledge("s", *streams.wake(), (("e/1", encode(2)),)))
        with pytest.raises(core.InvalidOffset):
            streams.run(core.Acknowledge("s", *streams.wake(), (("e/1", encode(1)),)))

    def test_subscriptions_to_each_others_wakes_wake_once(self, streams: Core) -> None:
        streams.run(core.Subscribe("s", "pull-wake", "**", (), None, "wakes", 10.0, None))
        streams.run(core.Subscribe("t", "pull-wake", "wakes", (), None, "wakes", 10.0, None))
        streams.run(Create("a", "text/plain", body=b"ab"))
        assert [each["subscription_id"] for each in streams.wakes()] == ["s", "t"]

    def test_long_chain_of_wakes_reaches_its_end(self, streams: Core) -> None:
        for number in range(500):
            streams.run(Create(f"{number + 1}", JSON))
            wakes = f"{number + 1}"
            streams.run(core.Subscribe(wakes, "pull-wake", None, (f"{number}",), None, wakes, 10.0, None))
        streams.run(Create("0", JSON, body=b"1"))
        assert [each.tail for each in streams.source.streams.values() if each.path != "wakes"] == [1] * 501

    def test_results_of_commands_do_not_change(self) -> None:
        transaction = Transaction(Memory(), 0.0)
        created = Create("e/1", JSON, body=b"1").apply(transaction)
        view = core.Subscribe("s", "pull-wake", "e/*", (), None, "wakes", 10.0, None).apply(transaction)
        Append("e/1", JSON, b"2", close=True).apply(transaction)
        assert (created.stream.tail, created.stream.closed, view.subscription.generation) == (1, False, 0)


class TestMembership:
    def test_append_in_the_transaction_of_an_unlink_wakes_nothing(self, streams: Core) -> None:
        streams.run(Create("x", "text/plain", body=b"ab"))
        streams.subscribe("pull-wake", None, "x")
        transaction = Transaction(streams.source, streams.now)
        core.Unlink("s", "x").apply(transaction)
        Append("x", "text/plain", b"!").apply(transaction)
        streams.source.store(transaction)
        assert (streams.acked(), streams.wakes()) == ({}, [])

    def test_deleted_stream_without_data_leaves_its_subscription(self, streams: Core) -> None:
        streams.subscribe()
        streams.run(Create("e/1", "text/plain"))
        streams.run(Delete("e/1"))
        assert (streams.acked(), streams.wakes()) == ({}, [])

    def test_explicit_streams_can_be_linked_and_unlinked(self, streams: Core) -> None:
        streams.run(Create("x", "text/plain", body=b"ab"))
        streams.subscribe("pull-wake", "e/*", "x", "e/1")
        assert streams.acked() == {"x": 2, "e/1": 0}
        streams.run(core.LinkStreams("s", ("x", "y")))
        streams.run(core.Unlink("s", "x"))
        streams.run(core.Unlink("s", "z"))
        streams.run(Append("x", "text/plain", b"!"))
        assert (streams.acked(), streams.wakes()) == ({"y": 0, "e/1": 0}, [])
        with pytest.raises(core.SubscriptionNotFound):
            streams.run(core.LinkStreams("t", ("x",)))
        with pytest.raises(core.SubscriptionNotFound):
            streams.run(core.Unlink("t", "x"))

    def test_unlinked_stream_stays_if_the_pattern_matches_it(self, streams: Core) -> None:
        streams.run(Create("e/1", "text/plain"))
        view = streams.subscribe("pull-wake", "e/*", "e/1")
        assert view.streams[0].short()["link_type"] == "explicit"
        streams.run(core.Unlink("s", "e/1"))
        assert streams.run(core.Look("s")).streams[0].short()["link_type"] == "glob"

    def test_deleted_streams_stay_only_if_they_are_named(self, streams: Core) -> None:
        streams.run(Create("x", "text/plain", body=b"ab"))
        streams.run(Create("e/1", "text/plain", body=b"ab"))
        streams.subscribe("pull-wake", "e/*", "x")
        streams.run(Delete("x"))
        streams.run(Delete("e/1"))
        assert streams.acked() == {"x": 0}
        streams.run(Create("x", "text/plain", body=b"a"))
        assert len(streams.wakes()) == 1

    def test_a_wake_of_streams_that_are_deleted_is_over(self, streams: Core) -> None:
        streams.subscribe()
        streams.run(Create("e/1", "text/plain", body=b"ab"))
        streams.run(Delete("e/1"))
        with pytest.raises(core.NoPendingWork):
            streams.run(core.Claim("s", "worker"))
        streams.run(Create("e/1", "text/plain", body=b"ab"))
        assert [each["generation"] for each in streams.wakes()] == [1, 2]

    def test_streams_that_expire_are_forgotten(self, streams: Core) -> None:
        streams.run(Create("e/1", "text/plain", 1, body=b"ab"))
        streams.run(Create("e/2", "text/plain", body=b"ab"))
        streams.subscribe()
        streams.now += 2
        streams.run(Append("e/2", "text/plain", b"c"))
        streams.run(Create("e/1", "text/plain", body=b"x"))
        streams.run(core.Claim("s", "worker"))
        wake = streams.wake()
        assert not streams.run(core.Acknowledge("s", *wake, (("e/1", encode(1)), ("e/2", encode(3))), True))

    def test_subscription_can_be_repeated_but_not_changed(self, streams: Core) -> None:
        assert streams.subscribe().new
        assert not streams.subscribe().new
        with pytest.raises(core.AlreadyExists):
            streams.subscribe("pull-wake", "f/*")
        with pytest.raises(Forbidden, match="the limit of 1 subscriptions is reached"):
            streams.run(core.Subscribe("t", "pull-wake", "a", (), None, "wakes", 10.0, None, most=1))
        streams.run(Create("e/1", "text/plain", body=b"ab"))
        streams.run(core.Unsubscribe("s"))
        streams.run(core.Unsubscribe("s"))
        assert (streams.source.known, streams.source.all_links) == ({}, {})

    def test_commands_in_one_transaction_see_each_other(self) -> None:
        memory = Memory()
        transaction = Transaction(memory, 0.0)
        commands: list[Command[Any]] = [
            core.Subscribe("s", "pull-wake", "e/*", ("x",), None, "wakes", 10.0, None),
            Create("e/1", JSON, body=b"1"),
            Create("y", JSON, body=b"1"),
            core.Subscribe("t", "pull-wake", "e/*", (), None, "wakes", 10.0, None),
            core.LinkStreams("t", ("y",)),
            core.Unlink("t", "y"),
            Append("e/1", JSON, b"2"),
            Append("y", JSON, b"2"),
            core.Unsubscribe("s"),
            Append("e/1", JSON, b"3"),
        ]
        for command in commands:
            command.apply(transaction)
        memory.store(transaction)
        assert {name: dict(memory.links(name)) for name in memory.known} == {"t": {"e/1": Link(False, True, 1, 2)}}


class TestDelivery:
    def test_a_lease_that_is_over_is_no_claim(self, streams: Core) -> None:
        streams.subscribe()
        streams.run(Create("e/1", "text/plain", body=b"ab"))
        streams.run(core.Claim("s", "worker"))
        streams.now += 9.9
        with pytest.raises(core.AlreadyClaimed):
            streams.run(core.Claim("s", "other"))
        streams.now += 0.2
        assert streams.run(core.Claim("s", "other")).subscription.holder == "other"
        assert streams.source.known["s"].generation == 2

    def test_a_lease_by_a_clock_that_was_ahead_is_made_as_long_as_another(self, streams: Core) -> None:
        streams.subscribe()
        streams.run(Create("e/1", "text/plain", body=b"ab"))
        streams.now += 3600
        streams.run(core.Claim("s", "worker"))
        streams.now -= 3600
        streams.run(core.Lapse("s"))
        assert streams.source.known["s"].lease_until == streams.now + 10
        streams.now += 10
        streams.run(core.Lapse("s"))
        assert streams.source.known["s"].holder is None
        streams.run(core.Lapse("nobody"))

    def test_an_attempt_by_a_clock_that_was_ahead_is_due(self, streams: Core) -> None:
        streams.subscribe("webhook")
        streams.now += 3600
        streams.run(Create("e/1", "text/plain", body=b"ab"))
        streams.now -= 3600
        assert streams.run(core.Deliver("s", 5.0)) is not None
        assert streams.run(core.Deliver("s", 5.0)) is None

    def test_failed_deliveries_are_retried_after_growing_delays(self, streams: Core) -> None:
        streams.subscribe("webhook")
        streams.run(Create("e/1", "text/plain", body=b"ab"))
        delays = []
        for attempt in range(9):
            delivery = streams.run(core.Deliver("s", 5.0))
            assert delivery is not None
            assert delivery.attempt == attempt
            assert streams.run(core.Deliver("s", 5.0)) is None  # by another process
            wake = streams.source.known["s"].wake
            assert wake is not None
            streams.run(core.Delivered("s", "another", False))
            streams.run(core.Delivered("s", wake, False))
            due = streams.source.known["s"].attempt_at
            assert due is not None
            delays.append(due - streams.now)
            streams.now = due
            streams.run(core.Lapse("s"))  # a new wake waits as long
        for attempt, delay in enumerate(delays):
            assert 0.79 <= delay / min(60, 2**attempt) <= 1.21
        delivery = streams.run(core.Deliver("s", 5.0))
        assert delivery is not None
        wake = delivery.view.subscription.wake
        assert wake is not None
        streams.run(core.Delivered("s", wake, True))
        assert streams.source.known["s"].attempts == 0
        streams.run(core.Acknowledge("s", *streams.wake(), (("e/1", encode(2)),), True))
        assert streams.source.known["s"].due is None
        assert streams.run(core.Deliver("s", 5.0)) is None
        assert streams.run(core.Deliver("t", 5.0)) is None

    def test_delivery_that_is_done_acknowledges_what_the_wake_had(self, streams: Core) -> None:
        streams.subscribe("webhook")
        streams.run(Create("e/1", "text/plain", body=b"ab"))
        wake = streams.source.known["s"].wake
        assert wake is not None
        streams.run(core.LinkStreams("s", ("y",)))
        streams.run(Append("e/1", "text/plain", b"c"))
        streams.run(core.Delivered("s", wake, True, True))
        assert streams.acked() == {"e/1": 2, "y": 0}
        assert streams.source.known["s"].generation == 2  # for the rest

    def test_acknowledgement_of_an_undelivered_wake_ends_its_retries(self, streams: Core) -> None:
        streams.subscribe("webhook")
        streams.run(Create("e/1", "text/plain", body=b"ab"))
        assert streams.run(core.Deliver("s", 5.0)) is not None
        streams.run(core.Delivered("s", streams.wake()[1], False))
        streams.run(core.Acknowledge("s", *streams.wake(), (("e/1", encode(2)),), True))
        subscription = streams.source.known["s"]
        assert (subscription.attempts, subscription.due) == (0, None)
        streams.run(Append("e/1", "text/plain", b"c"))
        assert streams.run(core.Deliver("s", 5.0)) is not None

    def test_webhook_subscription_refuses_claim_and_release(self, streams: Core) -> None:
        streams.subscribe("webhook")
        streams.run(Create("e/1", "text/plain", body=b"ab"))
        with pytest.raises(Invalid):
            streams.run(core.Claim("s", "worker"))
        with pytest.raises(Invalid):
            streams.run(core.Release("s", "pull-wake", *streams.wake()[1:]))


class TestAddresses:
    @pytest.mark.parametrize(
        "url",
        ["https://hooks.example/x?y=z", "https://93.184.216.34:8443/", "http://localhost:1234/", "http://127.0.0.2/"],
    )
    def test_public_https_and_local_http_urls_are_accepted(self, url: str) -> None:
        check_url(url, local=True)
        if url.startswith("http:"):
            with pytest.raises(UrlRejected, match=r"local_webhooks .* allows http to this machine"):
                check_url(url)

    @pytest.mark.parametrize("url", ["http://localhost:4437/", "http://127.0.0.3/v1/stream/a"])
    def test_the_servers_own_ports_are_refused(self, url: str) -> None:
        check_url(url, local=True, own={1})
        with pytest.raises(UrlRejected, match="own port"):
            check_url(url, local=True, own={4437, 80})
        with pytest.raises(UrlRejected, match="http is for localhost"):
            check_url("http://hooks.example/", local=True)

    @pytest.mark.parametrize(
        "url",
        [
            "nothing",
            "https://",
            "https://[::1",
            "https://a:99999/",
            "https://a/\n",
            "https://127。0。0。1/",
            "https://①②⑦.0.0.1/",
            "https://ⓛocalhost/",
            "https://127%2E0.0.1/",
            "ftp://a.example/",
            "http://hooks.example/",
            "http://10.0.0.1/",
            "https://10.0.0.1/",
            "https://172.16.0.1/",
            "https://192.168.1.1/",
            "https://169.254.169.254/latest/meta-data",
            "https://100.64.0.1/",
            "https://0.0.0.0/",
            "https://224.0.0.1/",
            "https://127.0.0.1/",
            "https://localhost/",
            "https://a.localhost./",
            "https://[::1]/",
            "https://[::2]/",
            "https://[::93.184.216.34]/",
            "https://[1::1]/",
            "https://[4000::1]/",
            "https://[fe80::1%25eth0]/",
            "https://[fd00::1]/",
            "https://[::ffff:10.0.0.1]/",
            "https://[2002:0a00:0001::]/",
            "https://2130706433/",
            "https://0x7f000001/",
            "https://user:password@hooks.example/",
            "https://hooks.example/" + "x" * 2048,
        ],
    )
    def test_malformed_and_private_urls_are_refused(self, url: str) -> None:
        with pytest.raises(UrlRejected):
            check_url(url)

    @pytest.mark.parametrize("address", ["2002:a00:1::", "::ffff:10.0.0.1", "64:ff9b:1::1", "ff02::1"])
    def test_private_addresses_within_others_are_not_public(self, address: str) -> None:
        assert not is_public(ip_address(address))
        assert is_public(ip_address("2606:4700:4700::1111"))

    async def test_names_in_a_private_network_are_not_resolved(self) -> None:
        class Names:
            async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[dict[str, Any]]:
                addresses = {"mixed": ["10.0.0.1", "93.184.216.34"], "inside": ["fd00::1"], "localhost": ["127.0.0.1"]}
                return [{"host": each} for each in addresses[host]]

            async def close(self) -> None: ...

        names: Any = Names()
        resolver = Resolver(names)
        assert [each["host"] for each in await resolver.resolve("mixed")] == ["93.184.216.34"]
        assert [each["host"] for each in await resolver.resolve("localhost")] == ["127.0.0.1"]
        with pytest.raises(OSError, match="no public address"):
            await resolver.resolve("inside")
        await resolver.close()


SUBSCRIPTIONS = "/v1/stream/__ds/subscriptions"
PULL = {"type": "pull-wake", "pattern": "e/*", "wake_stream": "wakes"}
HOOK = {"type": "webhook", "pattern": "e/*", "webhook": {"url": "http://localhost:1/"}}


class TestEndpoint:
    @pytest.mark.parametrize(
        "body",
        [
            "[]",
            "{",
            "[" * 100_000,
            {},
            {**PULL, "type": "push"},
            {"type": "pull-wake", "wake_stream": "wakes"},
            {**PULL, "pattern": 1},
            {**PULL, "streams": "a"},
            {**PULL, "streams": [1]},
            {**PULL, "streams": ["__ds/x"]},
            {**PULL, "lease_ttl_ms": 999},
            {**PULL, "lease_ttl_ms": 600_001},
            {**PULL, "lease_ttl_ms": True},
            {**PULL, "description": "x" * 5000},
            {**PULL, "wake_stream": None},
            {**PULL, "pattern": "\ud800"},
            {**PULL, "description": "\ud800"},
            {**HOOK, "webhook": None},
            {**HOOK, "webhook": {}},
        ],
    )
    def test_bad_configurations_are_refused(self, http: httpx.Client, body: Any) -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        response = http.put(f"{SUBSCRIPTIONS}/bad", content=text)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "INVALID_REQUEST")

    def test_webhooks_to_this_machine_can_be_refused(self, tmp_path: Path) -> None:
        for local, status in ((True, 201), (False, 400)):
            with serving(data=str(tmp_path / str(local)), local_webhooks=local) as server:
                response = httpx.put(f"{server.url}{SUBSCRIPTIONS}/s", json=HOOK)
                assert response.status_code == status

    def test_webhooks_to_the_server_itself_are_refused(self, tmp_path: Path) -> None:
        with serving(data=str(tmp_path), local_webhooks=True) as server:
            own = {**HOOK, "webhook": {"url": f"{server.url}/v1/stream/a"}}
            response = httpx.put(f"{server.url}{SUBSCRIPTIONS}/s", json=own)
            assert (response.status_code, response.json()["error"]["code"]) == (400, "WEBHOOK_URL_REJECTED")

    def test_an_id_is_decoded_by_segment_and_strictly(self, http: httpx.Client) -> None:
        for name in ("x", "fds"):
            assert http.put(f"{SUBSCRIPTIONS}/{name}", json=PULL).status_code in (200, 201)
        disguised = "/v1/stream/%5f%5fds/subscriptions"
        assert http.get(f"{disguised}/x").json()["id"] == "x"
        assert http.get("/v1/stream/__ds/%73ubscriptions/x").json()["id"] == "x"
        assert http.delete(f"{disguised}/x").status_code == 204
        assert http.get(f"{SUBSCRIPTIONS}/fds").status_code == 200
        for wrong in ("%ff", "%fe", "a%C3", "%ED%A0%80"):
            refused = http.put(f"{SUBSCRIPTIONS}/{wrong}", json=PULL)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "INVALID_REQUEST")

    def test_wrong_methods_and_paths_are_refused(self, http: httpx.Client) -> None:
        for method, path, status in (
            ("POST", "/v1/stream/__ds/jwks.json", 405),
            ("POST", f"{SUBSCRIPTIONS}/a", 405),
            ("GET", f"{SUBSCRIPTIONS}/a/streams", 405),
            ("POST", f"{SUBSCRIPTIONS}/a/streams/b", 405),
            ("GET", f"{SUBSCRIPTIONS}/a/claim", 405),
            ("POST", f"{SUBSCRIPTIONS}/a/fetch", 404),
            ("GET", f"{SUBSCRIPTIONS}/a", 404),
            ("DELETE", f"{SUBSCRIPTIONS}/a", 204),
            ("GET", f"{SUBSCRIPTIONS}/{'a' * 257}", 400),
            ("POST", f"{SUBSCRIPTIONS}/a/ack", 401),
        ):
            assert http.request(method, path).status_code == status

    def test_an_id_may_be_anything(self, http: httpx.Client) -> None:
        path = f"{SUBSCRIPTIONS}/a%2Fb%20%C3%A9"
        assert http.put(path, json=PULL).status_code == 201
        assert http.put(path, json=PULL).status_code == 200
        assert http.put(path, json={**PULL, "description": "another"}).status_code == 409
        assert http.get(path).json()["id"] == "a/b é"
        assert http.delete(path).status_code == 204

    def test_bad_tokens_and_bodies_of_workers_are_refused(self, server: Server, http: httpx.Client) -> None:
        http.put("/v1/stream/e/1", json=1)
        http.put(f"{SUBSCRIPTIONS}/w", json={**PULL, "pattern": "e/1"})
        http.put(f"{SUBSCRIPTIONS}/v", json=PULL)
        http.post("/v1/stream/e/1", json=1)
        for worker in ("", "\ud800", 1):
            claiming = http.post(f"{SUBSCRIPTIONS}/w/claim", content=json.dumps({"worker": worker}))
            assert claiming.status_code == 400
        claim = http.post(f"{SUBSCRIPTIONS}/w/claim", json={"worker": "me"}).json()
        body = {"wake_id": claim["wake_id"], "generation": claim["generation"]}

        def ack(token: str, body: Any, name: str = "w") -> tuple[int, str]:
            headers = {"Authorization": f"Bearer {token}"}
            response = http.post(f"{SUBSCRIPTIONS}/{name}/ack", json=body, headers=headers)
            return response.status_code, response.json().get("error", {}).get("code", "")

        key = server.application._subscriptions.keys._token
        claims = jwt.decode(claim["token"], key, ["HS256"])
        expired = jwt.encode({**claims, "exp": 1}, key, "HS256")
        assert ack("x", body) == ack(claim["token"], body, "v") == (401, "TOKEN_INVALID")
        assert ack(expired, body) == (401, "TOKEN_EXPIRED")
        for bad in ({}, {**body, "done": 1}, {**body, "acks": 1}, {**body, "acks": [{}]}, {**body, "acks": [1]}):
            assert ack(claim["token"], bad) == (400, "INVALID_REQUEST")
        assert ack(claim["token"], {**body, "wake_id": "x"}) == (409, "FENCED")
        assert ack(claim["token"], {**body, "acks": [{"path": "e/1", "offset": "x"}]}) == (409, "INVALID_OFFSET")
        assert ack(claim["token"], body) == (200, "")
        for name in "wv":
            http.delete(f"{SUBSCRIPTIONS}/{name}")

    def test_leases_lapse_and_survive_a_restart(self, tmp_path: Path) -> None:
        with serving(data=str(tmp_path)) as server, httpx.Client(base_url=server.url, timeout=60) as http:
            http.put("/v1/stream/wakes", json=[])
            http.put(f"{SUBSCRIPTIONS}/s", json={**PULL, "lease_ttl_ms": 1000})
            http.put("/v1/stream/e/1", json=1)
            assert http.post(f"{SUBSCRIPTIONS}/s/claim", json={"worker": "one"}).status_code == 200
            wait_for(lambda: len(http.get("/v1/stream/wakes").json()) == 2)
            claim = http.post(f"{SUBSCRIPTIONS}/s/claim", json={"worker": "two"}).json()
        with serving(data=str(tmp_path)) as server, httpx.Client(base_url=server.url, timeout=60) as http:
            headers = {"Authorization": f"Bearer {claim['token']}"}
            body = {"wake_id": claim["wake_id"], "generation": claim["generation"]}
            response = http.post(f"{SUBSCRIPTIONS}/s/ack", json=body, headers=headers)
            assert response.json() in (
                {"ok": True, "next_wake": False},
                {"error": {"message": "the wake is over", "code": "FENCED"}},
            )
            wait_for(lambda: len(http.get("/v1/stream/wakes").json()) == 3)
            assert http.delete(f"{SUBSCRIPTIONS}/s").status_code == 204


def wait_for(condition: Callable[[], bool]) -> None:
    """Return when it is true."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


class Hook:
    """A webhook, which answers what it is told to."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.calls: list[Any] = []

    async def call(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(await request.json())
        answer = self.answers.pop(0) if self.answers else {"done": True}
        if answer == "hang":
            await asyncio.sleep(60)
        if isinstance(answer, int):
            return web.Response(status=answer, headers={"Location": "http://localhost:1/"})
        text = answer if isinstance(answer, str) else json.dumps(answer)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(text[:5].encode())
        await asyncio.sleep(0.1)  # in two segments
        await response.write(text[5:].encode())
        return response


async def test_webhook_is_retried_after_bad_answers_and_faults(tmp_path: Path) -> None:
    hook = Hook()
    app = web.Application()
    app.router.add_post("/", hook.call)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    with serving(data=str(tmp_path), local_webhooks=True) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            hook.answers = [500, 302, "not JSON", "[" * 60_000, "x" * 70_000]
            config = {**HOOK, "webhook": {"url": f"http://127.0.0.1:{port}/"}, "lease_ttl_ms": 1000}
            assert (await http.put(f"{SUBSCRIPTIONS}/s", json=config)).status_code == 201
            await http.put("/v1/stream/e/1", json=1)

            async def state() -> Any:
                return (await http.get(f"{SUBSCRIPTIONS}/s")).json()

            while (await state())["status"] != "failed":  # noqa: ASYNC110 - it is another process's, in a way
                await asyncio.sleep(0.01)
            while (await state())["streams"][0]["acked_offset"] == "-1":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert (await state())["status"] == "active"
            assert len(hook.calls) >= 4  # two failed, one lapsed, one was done
            generations = [call["generation"] for call in hook.calls]
            assert generations == sorted(generations)
            # A database that fails is tried again, like a webhook.
            streams, run = server.application.streams, server.application.streams.run
            failed: list[Any] = []

            async def fail(command: Any) -> Any:
                if isinstance(command, core.Deliver) and not failed:
                    failed.append(command)
                    raise StorageError("no")
                return await run(command)

            setattr(streams, "run", fail)  # noqa: B010 - a method
            await http.post("/v1/stream/e/1", json=2)
            while "0000000002" not in (await state())["streams"][0]["acked_offset"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert failed
            hook.answers = ["hang"]
            count = len(hook.calls)
            await http.post("/v1/stream/e/1", json=2)
            while len(hook.calls) == count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    await runner.cleanup()


async def test_a_receiver_that_hangs_delays_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hanging = Hook()
    hanging.answers = ["hang"] * 1000
    good = Hook()
    ports = []
    runners = []
    for hook in (hanging, good):
        app = web.Application()
        app.router.add_post("/", hook.call)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ports.append(runner.addresses[0][1])
        runners.append(runner)
    with serving(data=str(tmp_path), local_webhooks=True) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            await http.put(f"{SUBSCRIPTIONS}/zz", json={**HOOK, "webhook": {"url": f"http://127.0.0.1:{ports[1]}/"}})
            for number in range(40):
                url = f"http://127.0.0.{number % 2 + 1}:{ports[0]}/"
                name = f"h{number}%0Aforged"
                assert (await http.put(f"{SUBSCRIPTIONS}/{name}", json={**HOOK, "webhook": {"url": url}})).is_success
            await http.put("/v1/stream/e/1", json=1)
            while not good.calls:  # noqa: ASYNC110 - of another thread
                await asyncio.sleep(0.01)
            # 16 at once to 127.0.0.1, and nobody listens at 127.0.0.2.
            assert len(hanging.calls) <= 16
            while "failed, and is called again later" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert not any("\n" in record.getMessage() for record in caplog.records)
    for runner in runners:
        await runner.cleanup()
