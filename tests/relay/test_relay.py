"""The relay over a broker in memory, on a loop on which waits take no time."""

import asyncio
import json
import logging
from collections.abc import Collection
from contextvars import ContextVar
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import DelayedOperationPurgatory, ThresholdPurgatory
from purgatory.relay import Relay, RelayError
from purgatory.relay.payload import MAX_PAYLOAD, check_key, decode, encode
from tests.relay.relays import Grown, MakeProcess, MemoryBroker, collect_faults, pass_time, skipping, watch_unchecked
from tests.support.operations import Flag, turn

TEXT = st.text(st.characters(exclude_categories=()))  # NUL and single surrogates, too
LONG = TEXT.map(lambda text: text * 500).filter(lambda text: len(json.dumps(text)) <= 7935)


class TestInOneProcess:
    async def test_relay_without_a_broker_checks_a_key_on_the_next_iteration(self) -> None:
        first, second = DelayedOperationPurgatory(), DelayedOperationPurgatory()
        async with first, second, Relay(first, second) as relay:
            flags = [*watch_unchecked(first, "key"), *watch_unchecked(second, "key")]
            relay.notify("key")
            assert not any(flag.done() for flag in flags)
            await turn()
            assert all(flag.done() for flag in flags)
            await relay.flush()
            assert not relay.connected
            assert relay.statistics().notified == 1

    async def test_a_key_that_cannot_be_looked_up_harms_no_other(self) -> None:
        class Odd:
            def __hash__(self) -> int:
                return hash("key")

            def __eq__(self, other: object) -> bool:
                raise LookupError

        faults = collect_faults()
        async with DelayedOperationPurgatory() as odd, DelayedOperationPurgatory() as fine, Relay(odd, fine) as relay:
            odd.try_complete_else_watch(Flag(), [Odd()])
            [flag] = watch_unchecked(fine, "key")
            relay.notify("key")
            await flag
        assert [type(context["exception"]) for context in faults] == [LookupError]


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "options", "error"),
        [
            (["purgatory"], {}, "each purgatory must be a DelayedOperationPurgatory"),
            ([ThresholdPurgatory(0)], {}, "pass its .purgatory"),
            ([], {"broker": "redis://localhost"}, "broker must be an object with connect"),
            ([], {"refresh": 3}, "refresh must be callable, not 3"),
            ([], {"invalidate": 3}, "invalidate must be callable, not 3"),
            ([], {"heartbeat": "1"}, "heartbeat must be a number"),
            ([], {"heartbeat": 0.0}, "heartbeat must be finite and positive"),
            ([], {"max_keys": 1.5}, "max_keys must be an int"),
            ([], {"max_keys": 0}, "max_keys must be at least 1"),
        ],
    )
    def test_a_wrong_argument_is_refused(self, arguments: list[Any], options: dict[str, Any], error: str) -> None:
        with pytest.raises((TypeError, ValueError), match=error):
            Relay(*arguments, **options)

    @pytest.mark.parametrize(
        ("keys", "error"),
        [([1], TypeError), (["key", b"key"], TypeError), ([["key"]], TypeError), (["key", "x" * 7934], ValueError)],
    )
    async def test_a_key_that_cannot_be_sent_is_refused_before_anything_happens(
        self, keys: list[Any], error: type[Exception]
    ) -> None:
        async with DelayedOperationPurgatory() as purgatory, Relay(purgatory) as relay:
            [flag] = watch_unchecked(purgatory, "key")
            with pytest.raises(error, match="key"):
                relay.notify(*keys)
            with pytest.raises(error, match="key"):
                relay.payloads(keys)
            await turn()
            assert not flag.done()
            assert relay.statistics().notified == 0

    async def test_a_relay_is_used_while_it_is_open_and_once(self) -> None:
        relay = Relay(DelayedOperationPurgatory("fetch"))
        assert repr(relay) == "<Relay 'fetch' not open yet>"
        for use in (lambda: relay.notify("key"), lambda: asyncio.run(relay.flush())):
            with pytest.raises(RelayError, match="async with"):
                await asyncio.to_thread(use)
        async with relay:
            with pytest.raises(RelayError, match="serves once"):
                await relay.__aenter__()
        with pytest.raises(RelayError, match="<Relay 'fetch' closed>"):
            relay.notify("key")

    async def test_call_from_another_thread_is_refused_and_names_the_right_one(self) -> None:
        async with Relay() as relay:
            with pytest.raises(RelayError, match="call_soon_threadsafe"):
                await asyncio.to_thread(relay.notify, "key")


class TestPayloads:
    @given(st.lists(TEXT | LONG, unique=True, max_size=40), st.sampled_from([None, "0123456789abcdef" * 2]))
    def test_payloads_have_exactly_the_keys_in_less_than_8000_bytes_each(
        self, keys: list[str], sender: str | None
    ) -> None:
        for key in keys:
            check_key(key)
        payloads = list(encode(keys, sender))
        assert all(len(payload.encode()) <= MAX_PAYLOAD < 8000 and "\0" not in payload for payload in payloads)
        messages = [decode(payload) for payload in payloads]
        assert {sender for sender, _ in messages} <= {sender}
        assert [key for _, some in messages for key in some or ()] == keys

    @given(TEXT | LONG | TEXT.map(lambda text: text * 3000))
    def test_a_key_is_refused_if_and_only_if_it_does_not_fit(self, key: str) -> None:
        fits = len(json.dumps(key)) <= MAX_PAYLOAD - 64
        try:
            check_key(key)
        except ValueError:
            assert not fits
        else:
            assert fits
            assert all(len(payload) <= MAX_PAYLOAD for payload in encode([key, key], "0123456789abcdef" * 2))

    def test_payloads_are_as_few_as_limit_allows(self) -> None:
        keys = [f"topic-{n}" for n in range(10_000)]
        needed = sum(len(key) + 3 for key in keys) / MAX_PAYLOAD
        payloads = Relay().payloads(keys * 2)
        assert len(payloads) <= needed * 1.02 + 1
        assert max(map(len, payloads)) <= MAX_PAYLOAD
        assert Relay().payloads([]) == []

    def test_a_str_is_no_iterable_of_keys(self) -> None:
        with pytest.raises(TypeError, match="not the str 'key'"):
            Relay().payloads("key")

    @pytest.mark.parametrize(
        "payload",
        [
            *("", "{", b"\xff", "[" * 200_000, "9" * 5000, "null", '["keys"]', "{}"),
            *('{"keys": "a"}', '{"keys": [1]}', '{"keys": {"a": 1}}', '{"keys": [], "from": 1}'),
        ],
        ids=lambda payload: repr(payload[:20]),
    )
    def test_a_bad_payload_is_a_value_error(self, payload: str | bytes) -> None:
        with pytest.raises(ValueError):  # noqa: PT011 - json's, or one of ours
            decode(payload)


class TestBetweenProcesses:
    @skipping
    async def test_an_operation_in_another_process_completes(self, process: MakeProcess) -> None:
        async with process() as here, process() as there:
            waiting = [there.watch("key", more) for more in (1, 2)]
            here.grow("key")
            assert await waiting[0] == 1
            assert not waiting[1].done()
            assert repr(there.relay) == "<Relay 'purgatory' open connected>"
            counts = {name: value for name, value in asdict(here.relay.statistics()).items() if value}
            assert counts == {"connected": True, "notified": 1, "published": 1}
            assert there.relay.statistics().received == 1
            assert here.refreshed == []

    @skipping
    async def test_calls_while_a_message_is_published_make_one_more(self, broker: MemoryBroker) -> None:
        async with Relay(broker=broker) as relay:
            broker.takes.clear()
            relay.notify("a")
            await pass_time(1)
            for _ in range(100):
                relay.notify("a", "b")
                await pass_time(0.01)
            broker.takes.set()
            await relay.flush()
            assert [decode(payload)[1] for payload in broker.taken] == [["a"], ["a", "b"]]

    @skipping
    async def test_a_message_that_cannot_be_read_is_reported_and_ignored(
        self, broker: MemoryBroker, process: MakeProcess
    ) -> None:
        faults = collect_faults()
        async with process() as here, process() as there:
            await broker.connections[0].publish(["topic-1", '{"keys": 3}', "x" * 1000])
            waiting = there.watch("key")
            here.grow("key")
            await waiting
            assert there.relay.statistics().malformed == 3
            assert len(faults) == 6
            assert max(len(context["payload"]) for context in faults) == 100

    @skipping
    async def test_key_notified_while_it_is_looked_up_is_looked_up_again(self, broker: MemoryBroker) -> None:
        state = {"key": 0}
        known = {"key": 0}
        reading, go_on = asyncio.Event(), asyncio.Event()

        async def refresh(keys: Collection[str]) -> None:
            found = state["key"]
            reading.set()
            await go_on.wait()
            known["key"] = found

        async with DelayedOperationPurgatory() as purgatory:
            waiting = purgatory.try_complete_else_watch(Grown(known, "key", 1), ["key"])
            async with Relay(purgatory, broker=broker, refresh=refresh), Relay(broker=broker) as other:
                await reading.wait()
                state["key"] = 1
                other.notify("key")
                await other.flush()
                await pass_time(1)
                go_on.set()
                await waiting

    @skipping
    async def test_keys_are_brought_up_to_date_a_thousand_at_a_time(
        self, broker: MemoryBroker, process: MakeProcess
    ) -> None:
        async with process() as here, process() as there:
            waiting = [there.watch(str(number)) for number in range(2500)]
            await pass_time(1)
            for number in range(2500):
                here.grow(str(number))
            for operation in waiting:
                await operation
            assert max(len(keys) for keys in there.refreshed) <= 1000
            assert sum(len(keys) for keys in there.refreshed) == 2500
            there.refreshed.clear()
            for number in range(2500):
                there.watch(str(number))
            broker.connections[1].lose()
            await pass_time(10)
            assert [len(keys) for keys in there.refreshed] == [1000, 1000, 500]


class TestOpeningAndClosing:
    @skipping
    async def test_a_broker_that_does_not_answer_at_the_start_is_an_error(self, broker: MemoryBroker) -> None:
        broker.connecting = asyncio.Event().wait
        with pytest.raises(RelayError, match="has not answered for 15 seconds"):
            await Relay(broker=broker).__aenter__()

    @skipping
    async def test_opening_of_a_relay_may_be_cancelled(self, broker: MemoryBroker) -> None:
        opening = asyncio.create_task(Relay(broker=broker).__aenter__())
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert broker.connections == []

    @skipping
    async def test_leaving_a_relay_waits_until_everything_is_published(self, broker: MemoryBroker) -> None:
        async with Relay(broker=broker) as relay:
            relay.notify("a")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            relay.notify("b")
        assert [decode(payload)[1] for payload in broker.taken] == [["a"], ["b"]]
        assert broker.connections == []

    @skipping
    async def test_leaving_a_relay_gives_up_on_a_broker_that_is_away_and_says_so(
        self, broker: MemoryBroker, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.WARNING)
        loop = asyncio.get_running_loop()
        async with Relay(broker=broker) as relay:
            broker.connections[0].deaf = True
            relay.notify("a")
            flushing = asyncio.create_task(relay.flush())
            began = loop.time()
        assert loop.time() - began == 5.0
        with pytest.raises(RelayError, match="before the broker had taken everything"):
            await flushing
        assert "has not taken all" in caplog.records[-1].getMessage()


SESSION = ContextVar("SESSION", default="none")


@skipping
async def test_relay_works_outside_the_context_of_the_request_that_opened_it(broker: MemoryBroker) -> None:
    seen: list[str] = []

    def see() -> None:
        seen.append(SESSION.get())

    async def see_soon(*arguments: object) -> None:
        see()

    broker.connecting = see_soon

    class Seeing(Flag):
        def try_complete(self) -> bool:
            see()
            return super().try_complete()

    async with DelayedOperationPurgatory() as purgatory:
        seeing = [purgatory.try_complete_else_watch(Seeing(), [str(number)]) for number in range(2)]
        seen.clear()
        SESSION.set("the request's")
        async with Relay(purgatory, broker=broker, refresh=see_soon, invalidate=see) as relay:
            seeing[0].ready = True
            await seeing[0]
            broker.connections[0].lose()  # it connects once more, and checks all again
            seeing[1].ready = True
            await seeing[1]
            relay.notify("2")
            await relay.flush()
    assert len(seen) >= 2 * 3 + 3
    assert set(seen) == {"none"}
