"""Subscriptions: the core by virtual time, and the endpoint with real webhooks."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest

from purgatory.streams.core import subscriptions as core
from purgatory.streams.core.commands import Append, Command, Create, Delete, Fork
from purgatory.streams.core.errors import Conflict, Forbidden, Invalid
from purgatory.streams.core.messages import JSON
from purgatory.streams.core.offsets import encode
from purgatory.streams.core.state import Subscription
from purgatory.streams.core.transaction import Transaction
from purgatory.streams.http.webhooks import Resolver, UrlRejected, check_url
from purgatory.streams.storage.database import Database, Extent, StorageError
from purgatory.streams.storage.sqlite import WritingDatabase
from tests.streams.hooks import HOOK, Hook, listening
from tests.streams.processes import client_of
from tests.streams.serving import Server, applied, served, serving, wait_until

SUBSCRIPTIONS = "/v1/stream/__ds/subscriptions"


def subscribe(
    pattern: str | None = "e/*", *streams: str, name: str = "s", kind: str = "pull-wake", limit: int | None = None
) -> core.Subscribe:
    url, wake_stream = ("https://a.example", None) if kind == "webhook" else (None, "wakes")
    return core.Subscribe(name, kind, pattern, streams, url, wake_stream, 10.0, None, limit)


def create(path: str, body: bytes = b"x") -> Create:
    return Create(path, "text/plain", body=body)


def append(path: str) -> Append:
    return Append(path, "text/plain", b"x")


def worker(subscription: Subscription | None) -> tuple[str, str, int, tuple[int, int]]:
    assert subscription is not None
    token = subscription.incarnation, subscription.generation
    return subscription.type, subscription.wake or "", subscription.generation, token


class Core:
    """Commands on a database, with a clock of their own."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.now = 1000.0

    def run(self, *commands: Command[Any]) -> Any:
        """Apply each command in a transaction of its own, and return the result of the last one."""
        return [applied(self.database, command, now=self.now) for command in commands][-1]

    @property
    def subscription(self) -> Subscription:
        found = self.database.subscription("s")
        assert found is not None
        return found

    def worker(self) -> tuple[str, str, int, tuple[int, int]]:
        return worker(self.subscription)

    def acknowledge(self, *acks: tuple[str, int], done: bool = False) -> Any:
        encoded = tuple((path, encode(position)) for path, position in acks)
        return self.run(core.Acknowledge("s", *self.worker(), encoded, done))

    def wakes(self) -> list[tuple[str, str, int]]:
        """The events of the wake stream: a subscription, a stream, a generation."""
        stream = self.database.stream("wakes")
        assert stream is not None
        parts = self.database.read(stream.pieces(0), Extent(2**30, 2**30))
        events = [json.loads(part.row.data) for part in parts]
        return [(each["subscription_id"], each["stream"], each["generation"]) for each in events]

    def acked(self) -> dict[str, int]:
        return {each.path: each.link.acked for each in self.database.linked("s", "", 100)}


@pytest.fixture
def streams(writer: WritingDatabase) -> Core:
    """With a stream for wakes."""
    found = Core(writer)
    found.run(Create("wakes", JSON))
    return found


@pytest.fixture
def woken(streams: Core) -> Core:
    """With a subscription, of which a stream is pending."""
    streams.run(subscribe(), create("e/1", b"ab"))
    return streams


@pytest.fixture
def called(streams: Core) -> Core:
    """The same with a webhook."""
    streams.run(subscribe(kind="webhook"), create("e/1", b"ab"))
    return streams


class TestWakes:
    def test_streams_that_are_there_begin_at_their_tail(self, streams: Core) -> None:
        streams.run(create("e/1", b"old"), create("other", b"old"))
        assert streams.run(subscribe()).new
        assert (streams.acked(), streams.wakes()) == ({"e/1": 3}, [])
        streams.run(append("e/1"), append("other"))
        assert streams.wakes() == [("s", "e/1", 1)]

    def test_streams_that_come_begin_at_their_beginning(self, streams: Core) -> None:
        streams.run(subscribe(), create("e/1", b""))
        assert streams.wakes() == []
        streams.run(append("e/1"))
        assert (streams.acked(), len(streams.wakes())) == ({"e/1": -1}, 1)
        streams.run(append("e/1"))
        assert len(streams.wakes()) == 1  # it is under way

    @pytest.mark.parametrize("end", ["acked", "lapsed", "released"])
    def test_a_wake_that_ends_with_work_left_is_followed_by_another(self, woken: Core, end: str) -> None:
        woken.run(core.Claim("s", "worker"))
        first = woken.worker()
        if end == "acked":
            assert woken.acknowledge(("e/1", 1), done=True)
        elif end == "released":
            woken.run(core.Release("s", *first))
        else:
            for _ in range(2):
                woken.now += 9.9
                woken.run(core.Lapse("s"))
                assert woken.worker() == first
                woken.acknowledge()  # a heartbeat
            woken.now += 10.1
            woken.run(core.Lapse("s"))
        assert woken.wakes() == [("s", "e/1", 1), ("s", "e/1", 2)]
        for late in (core.Acknowledge("s", *first), core.Release("s", *first)):
            with pytest.raises(core.Fenced):
                woken.run(late)

    def test_wake_that_ends_with_nothing_left_cannot_be_claimed(self, woken: Core) -> None:
        view = woken.run(core.Claim("s", "worker"))
        (whole,) = [each.whole() for each in view.streams]
        assert whole.pop("tail_offset") == encode(2)
        assert whole == {"path": "e/1", "link_type": "glob", "acked_offset": "-1", "has_pending": True}
        assert not woken.acknowledge(("e/1", 2), done=True)
        with pytest.raises(core.NoPendingWork):
            woken.run(core.Claim("s", "worker"))
        assert len(woken.wakes()) == 1

    def test_claimed_subscription_cannot_be_claimed_by_another_until_its_lease_is_over(self, woken: Core) -> None:
        woken.run(core.Claim("s", "one"))
        woken.now += 9.9
        with pytest.raises(core.AlreadyClaimed) as caught:
            woken.run(core.Claim("s", "two"))
        assert (caught.value.holder, caught.value.generation) == ("one", 1)
        woken.now += 0.2
        taken = woken.run(core.Claim("s", "two")).subscription
        assert (taken.holder, taken.generation) == ("two", 2)

    @pytest.mark.parametrize(
        ("path", "offset"),
        [("e/2", encode(0)), ("e/1", "-1"), ("e/1", encode(0)), ("e/1", encode(1)), ("e/1", encode(3)), ("e/1", "x")],
    )
    def test_offsets_that_cannot_be_acknowledged_change_nothing(self, woken: Core, path: str, offset: str) -> None:
        woken.run(core.Claim("s", "worker"))
        woken.acknowledge(("e/1", 1))
        with pytest.raises(core.InvalidOffset):
            woken.run(core.Acknowledge("s", *woken.worker(), (("e/1", encode(2)), (path, offset)), True))
        assert woken.acked() == {"e/1": 1}
        with pytest.raises(core.InvalidOffset):
            woken.acknowledge(("e/1", 0))

    def test_subscriptions_to_each_others_wakes_wake_once(self, streams: Core) -> None:
        streams.run(subscribe("**"), subscribe("wakes", name="t"), create("a"))
        assert [name for name, _, _ in streams.wakes()] == ["s", "t"]

    def test_long_chain_of_wakes_reaches_its_end(self, streams: Core) -> None:
        for number in range(1, 501):
            wakes = f"{number}"
            streams.run(Create(wakes, JSON))
            streams.run(core.Subscribe(wakes, "pull-wake", None, (f"{number - 1}",), None, wakes, 10.0, None))
        streams.run(Create("0", JSON, body=b"1"))
        assert [each.tail for each in streams.database.listed("", "", 600)] == [*[1] * 501, 0]

    def test_results_of_commands_do_not_change(self, writer: WritingDatabase) -> None:
        transaction = Transaction(writer, 0.0)
        created = create("e/1").apply(transaction)
        view = subscribe().apply(transaction)
        Append("e/1", "text/plain", b"2", close=True).apply(transaction)
        assert (created.stream.tail, created.stream.closed, view.subscription.generation) == (1, False, 0)


class TestMembership:
    def test_explicit_streams_can_be_linked_and_unlinked(self, streams: Core) -> None:
        streams.run(create("x", b"ab"), subscribe("e/*", "x", "e/1"))
        assert streams.acked() == {"x": 2, "e/1": 0}
        streams.run(core.LinkStreams("s", ("x", "y")), core.Unlink("s", "x"), core.Unlink("s", "z"), append("x"))
        assert (streams.acked(), streams.wakes()) == ({"y": 0, "e/1": 0}, [])

    @pytest.mark.parametrize("command", [core.Claim("t", "x"), core.LinkStreams("t", ("x",)), core.Unlink("t", "x")])
    def test_unknown_subscription_is_refused(self, woken: Core, command: Command[Any]) -> None:
        with pytest.raises(core.SubscriptionNotFound):
            woken.run(command)

    def test_unlinked_stream_stays_if_the_pattern_matches_it(self, streams: Core) -> None:
        view = streams.run(create("e/1"), subscribe("e/*", "e/1"))
        assert view.streams[0].short()["link_type"] == "explicit"
        streams.run(core.Unlink("s", "e/1"))
        assert streams.run(core.Look("s")).streams[0].short()["link_type"] == "glob"

    def test_deleted_streams_stay_only_if_they_are_named(self, streams: Core) -> None:
        streams.run(create("x"), create("e/1"), subscribe("e/*", "x"), Delete("x"), Delete("e/1"))
        assert streams.acked() == {"x": 0}
        streams.run(create("x"))
        assert len(streams.wakes()) == 1

    def test_a_deleted_stream_that_is_kept_for_a_fork_has_nothing_pending(self, streams: Core) -> None:
        streams.run(create("x"), Create("fork", None, fork=Fork("x")), subscribe(None, "x"), Delete("x"))
        streams.run(subscribe(None, "x", name="t"))
        for name in ("s", "t"):
            (linked,) = streams.run(core.Look(name)).streams
            assert (linked.link.acked, linked.tail, linked.is_pending) == (0, 0, False)
        with pytest.raises(Conflict, match="kept for its forks"):
            streams.run(create("x"))

    def test_a_wake_of_streams_that_are_deleted_is_over(self, woken: Core) -> None:
        woken.run(Delete("e/1"))
        with pytest.raises(core.NoPendingWork):
            woken.run(core.Claim("s", "worker"))
        woken.run(create("e/1"))
        assert woken.wakes() == [("s", "e/1", 1), ("s", "e/1", 2)]

    def test_streams_that_expire_are_forgotten(self, streams: Core) -> None:
        streams.run(Create("e/1", "text/plain", 1, body=b"ab"), create("e/2", b"ab"), subscribe())
        streams.now += 2
        streams.run(append("e/2"), create("e/1"), core.Claim("s", "worker"))
        assert not streams.acknowledge(("e/1", 1), ("e/2", 3), done=True)

    def test_subscription_can_be_repeated_but_not_changed(self, streams: Core) -> None:
        assert [streams.run(subscribe()).new for _ in range(2)] == [True, False]
        with pytest.raises(core.AlreadyExists):
            streams.run(subscribe("f/*"))
        with pytest.raises(Forbidden, match="the limit of 1 subscriptions is reached"):
            streams.run(subscribe(name="t", limit=1))

    def test_nothing_is_left_of_a_deleted_subscription(self, woken: Core) -> None:
        woken.run(core.Unsubscribe("s"), core.Unsubscribe("s"))
        assert [woken.database.execute(f"SELECT * FROM {table}") for table in ("subscriptions", "links")] == [[], []]


class TestDelivery:
    def test_a_lease_by_a_clock_that_was_ahead_is_made_as_long_as_another(self, woken: Core) -> None:
        woken.now += 3600
        woken.run(core.Claim("s", "worker"))
        woken.now -= 3600
        woken.run(core.Lapse("s"))
        assert woken.subscription.lease_until == woken.now + 10
        woken.now += 10
        woken.run(core.Lapse("s"), core.Lapse("nobody"))
        assert woken.subscription.holder is None

    def test_an_attempt_by_a_clock_that_was_ahead_is_due(self, streams: Core) -> None:
        streams.now += 3600
        streams.run(subscribe(kind="webhook"), create("e/1"))
        streams.now -= 3600
        assert streams.run(core.Deliver("s", 5.0)) is not None
        assert streams.run(core.Deliver("s", 5.0)) is None

    def test_failed_deliveries_are_retried_after_growing_delays(self, called: Core) -> None:
        for attempt in range(9):
            assert called.run(core.Deliver("s", 5.0)).attempt == attempt
            assert called.run(core.Deliver("s", 5.0)) is None  # by another process
            called.run(core.Delivered("s", "another", False), core.Delivered("s", called.worker()[1], False))
            due = called.subscription.attempt_at
            assert due is not None
            assert 0.79 <= (due - called.now) / min(60, 2**attempt) <= 1.21
            called.now = due
            called.run(core.Lapse("s"))  # a new wake waits as long
        called.run(core.Deliver("s", 5.0), core.Delivered("s", called.worker()[1], True))
        assert called.subscription.attempts == 0

    @pytest.mark.parametrize("ok", [False, True])
    def test_a_wake_that_is_acknowledged_is_delivered_no_more(self, called: Core, ok: bool) -> None:
        called.run(core.Deliver("s", 5.0), core.Delivered("s", called.worker()[1], ok))
        called.acknowledge(("e/1", 2), done=True)
        assert (called.subscription.attempts, called.subscription.due) == (0, None)
        assert called.run(core.Deliver("s", 5.0)) is None
        assert called.run(core.Deliver("t", 5.0)) is None
        assert called.run(append("e/1"), core.Deliver("s", 5.0)) is not None

    def test_delivery_that_is_done_acknowledges_what_the_wake_had(self, called: Core) -> None:
        called.run(core.LinkStreams("s", ("y",)), append("e/1"), core.Delivered("s", called.worker()[1], True, True))
        assert called.acked() == {"e/1": 2, "y": 0}
        assert called.subscription.generation == 2  # for the rest

    def test_webhook_subscription_refuses_claim_and_release(self, called: Core) -> None:
        for command in (core.Claim("s", "worker"), core.Release("s", "pull-wake", *called.worker()[1:])):
            with pytest.raises(Invalid):
                called.run(command)


class TestAddresses:
    @pytest.mark.parametrize(
        "url",
        [
            *("https://hooks.example/x?y=z", "https://93.184.216.34:8443/", "https://[2606:4700:4700::1111]/"),
            *("http://localhost:1234/", "http://127.0.0.2/"),
        ],
    )
    def test_public_https_and_local_http_urls_are_accepted(self, url: str) -> None:
        check_url(url, local=True, own={1})
        if url.startswith("http:"):
            with pytest.raises(UrlRejected, match=r"to allow http to this machine, set local_webhooks"):
                check_url(url)

    @pytest.mark.parametrize(
        ("url", "reason"),
        [
            ("http://localhost:4437/", "own port"),
            ("http://127.0.0.3/v1/stream/a", "own port"),
            ("http://hooks.example/", "or http to localhost"),
        ],
    )
    def test_http_to_the_server_itself_and_to_other_machines_is_refused(self, url: str, reason: str) -> None:
        with pytest.raises(UrlRejected, match=reason):
            check_url(url, local=True, own={4437, 80})

    @pytest.mark.parametrize(
        "url",
        [
            *("nothing", "https://", "https://[::1", "https://a:99999/", "https://a/\n", "ftp://a.example/"),
            *("https://127。0。0。1/", "https://ⓛocalhost/", "https://127%2E0.0.1/", "http://hooks.example/"),
            *("https://10.0.0.1/", "https://172.16.0.1/", "https://192.168.1.1/", "https://100.64.0.1/"),
            *("https://0.0.0.0/", "https://127.0.0.1/", "https://2130706433/", "https://0x7f000001/"),
            *("https://169.254.169.254/latest/meta-data", "https://224.0.0.1/", "https://[fe80::1%25eth0]/"),
            *("https://[fd00::1]/", "https://[::ffff:10.0.0.1]/", "https://[2002:0a00:0001::]/", "https://[::1]/"),
            *("https://[::93.184.216.34]/", "https://[4000::1]/", "https://localhost/", "https://a.localhost./"),
            *("https://[64:ff9b:1::1]/", "https://[ff02::1]/", "https://[2002:a00:1::]/", "https://[::ffff:a00:1]/"),
            *("https://user:password@hooks.example/", "https://hooks.example/" + "x" * 2048),
        ],
    )
    def test_malformed_and_private_urls_are_refused(self, url: str) -> None:
        with pytest.raises(UrlRejected):
            check_url(url)

    async def test_names_in_a_private_network_are_not_resolved(self) -> None:
        class Names:
            async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[dict[str, Any]]:
                addresses = {"mixed": ["10.0.0.1", "93.184.216.34"], "inside": ["fd00::1"], "localhost": ["127.0.0.1"]}
                return [{"host": each} for each in addresses[host]]

        names: Any = Names()
        resolver = Resolver(names)
        assert [each["host"] for each in await resolver.resolve("mixed")] == ["93.184.216.34"]
        assert [each["host"] for each in await resolver.resolve("localhost")] == ["127.0.0.1"]
        with pytest.raises(OSError, match="no public address"):
            await resolver.resolve("inside")


PULL = {"type": "pull-wake", "pattern": "e/*", "wake_stream": "wakes"}


def refusal(response: httpx.Response) -> tuple[int, str]:
    """Its status, and the code of the error, if it is one."""
    return response.status_code, response.json().get("error", {}).get("code", "")


class TestEndpoint:
    @pytest.mark.parametrize(
        "body",
        [
            "[]",
            "{",
            "[" * 100_000,
            {**PULL, "type": "push"},
            {**PULL, "pattern": None},
            {**PULL, "pattern": 1},
            {**PULL, "pattern": "\ud800"},
            {**PULL, "streams": "a"},
            {**PULL, "streams": [1]},
            {**PULL, "streams": ["__ds/x"]},
            {**PULL, "streams": ["a"] * 1001},
            {**PULL, "lease_ttl_ms": 999},
            {**PULL, "lease_ttl_ms": 600_001},
            {**PULL, "lease_ttl_ms": True},
            {**PULL, "description": "x" * 5000},
            {**PULL, "wake_stream": None},
            {**HOOK, "webhook": None},
            {**HOOK, "webhook": {}},
        ],
    )
    def test_bad_configurations_are_refused(self, http: httpx.Client, body: Any) -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        assert refusal(http.put(f"{SUBSCRIPTIONS}/bad", content=text)) == (400, "INVALID_REQUEST")

    def test_webhooks_to_this_machine_are_refused_by_default(self, http: httpx.Client) -> None:
        assert refusal(http.put(f"{SUBSCRIPTIONS}/s", json=HOOK)) == (400, "WEBHOOK_URL_REJECTED")

    def test_an_id_is_decoded_by_segment_and_strictly(self, http: httpx.Client) -> None:
        for name, id_ in (("x", "x"), ("fds", "fds"), ("b%20%C3%A9", "b é")):
            assert http.put(f"{SUBSCRIPTIONS}/{name}", json=PULL).status_code == 201
            for prefix in (SUBSCRIPTIONS, "/v1/stream/%5f%5fds/subscriptions", "/v1/stream/__ds/%73ubscriptions"):
                assert http.get(f"{prefix}/{name}").json()["id"] == id_
            assert http.delete(f"{SUBSCRIPTIONS}/{name}").status_code == 204
        for wrong in ("%ff", "a%C3", "%ED%A0%80", "a%00b", "a%2Fb", "a%2f", "a/streams%2Fb"):
            assert refusal(http.put(f"{SUBSCRIPTIONS}/{wrong}", json=PULL)) == (400, "INVALID_REQUEST")

    @pytest.mark.parametrize(
        ("method", "path", "status"),
        [
            ("POST", f"{SUBSCRIPTIONS}/a", 405),
            ("POST", f"{SUBSCRIPTIONS}/a/streams/b", 405),
            ("POST", f"{SUBSCRIPTIONS}/a/fetch", 404),
            ("GET", f"{SUBSCRIPTIONS}/a", 404),
            ("GET", f"{SUBSCRIPTIONS}/{'a' * 257}", 400),
            ("POST", f"{SUBSCRIPTIONS}/a/ack", 401),
        ],
    )
    def test_wrong_methods_and_paths_are_refused(self, http: httpx.Client, method: str, path: str, status: int) -> None:
        assert http.request(method, path).status_code == status

    def test_bad_tokens_and_bodies_of_workers_are_refused(self, server: Server, http: httpx.Client) -> None:
        for name in "wv":
            http.put(f"{SUBSCRIPTIONS}/{name}", json=PULL)
        http.put("/v1/stream/e/1", json=1)
        for bad in ("", "\ud800", 1):
            response = http.post(f"{SUBSCRIPTIONS}/w/claim", content=json.dumps({"worker": bad}))
            assert refusal(response) == (400, "INVALID_REQUEST")
        claim = http.post(f"{SUBSCRIPTIONS}/w/claim", json={"worker": "me"}).json()
        wake = {"wake_id": claim["wake_id"], "generation": claim["generation"]}

        def ack(token: str = claim["token"], name: str = "w", **body: Any) -> tuple[int, str]:
            headers = {"Authorization": f"Bearer {token}"}
            return refusal(http.post(f"{SUBSCRIPTIONS}/{name}/ack", json=body, headers=headers))

        key = server.application._subscriptions.keys._token
        expired = jwt.encode({**jwt.decode(claim["token"], key, ["HS256"]), "exp": 1}, key, "HS256")
        assert ack("x", **wake) == ack(name="v", **wake) == (401, "TOKEN_INVALID")
        assert ack(expired, **wake) == (401, "TOKEN_EXPIRED")
        assert ack() == (400, "INVALID_REQUEST")
        wrong: list[dict[str, Any]] = [{"done": 1}, {"acks": 1}, {"acks": [{}]}, {"acks": [1]}]
        wrong += [{"acks": [{"path": path, "offset": "0"}]} for path in ("", "a\0", "..")]
        for more in wrong:
            assert ack(**wake, **more) == (400, "INVALID_REQUEST")
        assert ack(**{**wake, "wake_id": "x"}) == (409, "FENCED")
        assert ack(**wake, acks=[{"path": "e/1", "offset": "x"}]) == (409, "INVALID_OFFSET")
        assert ack(**wake) == (200, "")

    def test_leases_lapse_and_survive_a_restart(self, tmp_path: Path) -> None:
        with served(data=str(tmp_path)) as (_, http):
            http.put("/v1/stream/wakes", json=[])
            http.put(f"{SUBSCRIPTIONS}/s", json={**PULL, "lease_ttl_ms": 1000})
            http.put("/v1/stream/e/1", json=1)
            assert http.post(f"{SUBSCRIPTIONS}/s/claim", json={"worker": "one"}).status_code == 200
            wait_until(lambda: len(http.get("/v1/stream/wakes").json()) == 2)
            claim = http.post(f"{SUBSCRIPTIONS}/s/claim", json={"worker": "two"}).json()
        with served(data=str(tmp_path)) as (_, http):
            headers = {"Authorization": f"Bearer {claim['token']}"}
            body = {"wake_id": claim["wake_id"], "generation": claim["generation"]}
            response = http.post(f"{SUBSCRIPTIONS}/s/ack", json=body, headers=headers)
            assert refusal(response) in ((200, ""), (409, "FENCED"))
            wait_until(lambda: len(http.get("/v1/stream/wakes").json()) == 3)


@pytest.fixture
def calling(tmp_path: Path) -> Iterator[Server]:
    """A server that calls webhooks on this machine."""
    with serving(data=str(tmp_path), local_webhooks=True) as server:
        yield server


@pytest.fixture
async def client(calling: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(calling.url) as client:
        yield client


async def until(client: httpx.AsyncClient, condition: Callable[[Any], bool]) -> None:
    """Return when the subscription `s` fulfils the condition."""
    while not condition((await client.get(f"{SUBSCRIPTIONS}/s")).json()):  # noqa: ASYNC110 - of another thread
        await asyncio.sleep(0.02)


# The server has a loop of its own.
one_loop = pytest.mark.asyncio(loop_factories=["asyncio"])


@one_loop
async def test_webhooks_to_the_server_itself_are_refused(calling: Server, client: httpx.AsyncClient) -> None:
    own = {**HOOK, "webhook": {"url": f"{calling.url}/v1/stream/a"}}
    assert refusal(await client.put(f"{SUBSCRIPTIONS}/s", json=own)) == (400, "WEBHOOK_URL_REJECTED")


@one_loop
async def test_webhook_is_retried_after_bad_answers(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "FIRST_RETRY", 0.1)
    hook = Hook(500, 302, "not JSON", "[" * 60_000, "x" * 70_000)
    async with listening(hook):
        assert (await client.put(f"{SUBSCRIPTIONS}/s", json=hook.config())).status_code == 201
        await client.put("/v1/stream/e/1", json=1)
        await until(client, lambda state: state["status"] == "failed")
        await until(client, lambda state: state["streams"][0]["acked_offset"] != "-1")
        await until(client, lambda state: state["status"] == "active")
        generations = [call["generation"] for call in hook.calls]
        assert len(generations) >= 4  # two failed, one lapsed, one was done
        assert generations == sorted(generations)


@one_loop
async def test_a_delivery_that_the_database_fails_is_tried_again(
    calling: Server, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = Hook()
    run = calling.application.streams.run
    failures = [StorageError("no")]

    async def fail(command: Any) -> Any:
        if isinstance(command, core.Deliver) and failures:
            raise failures.pop()
        return await run(command)

    monkeypatch.setattr(calling.application.streams, "run", fail)
    async with listening(hook):
        await client.put(f"{SUBSCRIPTIONS}/s", json=hook.config())
        await client.put("/v1/stream/e/1", json=1)
        await until(client, lambda state: state["streams"][0]["acked_offset"] == encode(1))
    assert not failures


@one_loop
async def test_a_receiver_that_hangs_delays_no_other(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    hanging, good = Hook(*["hang"] * 1000), Hook()
    async with listening(hanging, good):
        await client.put(f"{SUBSCRIPTIONS}/zz", json=good.config())
        for number in range(40):
            config = hanging.config(f"127.0.0.{number % 2 + 1}")
            assert (await client.put(f"{SUBSCRIPTIONS}/h{number}%0Aforged", json=config)).is_success
        await client.put("/v1/stream/e/1", json=1)
        while not good.calls:  # noqa: ASYNC110 - of another thread
            await asyncio.sleep(0.01)
        # 16 at once to 127.0.0.1, and nobody listens at 127.0.0.2.
        assert len(hanging.calls) <= 16
        while "failed, and is called again later" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not any("\n" in record.getMessage() for record in caplog.records)
