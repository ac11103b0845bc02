"""The topic of statistics and the demo traffic, on a virtual clock; and over HTTP that clients cannot write there."""

import asyncio
import json
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from examples.long_poll_server.demo import MAX_PENDING, UNSEEN, Demo
from examples.long_poll_server.live import BOUNDS, KEPT, TOPIC, StatisticsTopic
from examples.long_poll_server.operations import DelayedFetch
from examples.long_poll_server.store import PAGE_BYTES
from purgatory import Delay, DelayedOperationPurgatory, VirtualClock
from tests.support.operations import Flag
from tests.support.server_process import fetch, publish, running, statistics, until_waiting

NOW_ON = 2**62


class Watched:
    """A purgatory, and the topic of its statistics."""

    def __init__(self) -> None:
        self.clock = VirtualClock(1000.0)
        self.purgatory = DelayedOperationPurgatory("fetch", clock=self.clock)
        self.topic = StatisticsTopic(self.purgatory, "web-1")
        self.topic.show(self.purgatory)

    def look(self, seconds: float) -> None:
        with self.topic.looking():
            self.clock.advance(seconds)

    def poll(self, offset: int, wait: float = 30.0) -> DelayedFetch:
        poll = DelayedFetch(self.topic, TOPIC, self.topic.start(TOPIC, offset), 1, wait)
        return self.purgatory.try_complete_else_watch(poll, [TOPIC])

    def read(self, offset: int, limit: int = 500) -> tuple[list[dict[str, Any]], int]:
        messages, next_offset = asyncio.run(self.topic.read(TOPIC, offset, self.topic.end(TOPIC), limit))
        return json.loads(messages), next_offset

    def idle(self) -> bool:
        return "scheduled=0" in repr(self.clock)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_without_a_reader_nothing_is_scheduled(watched: Watched) -> None:
    start = watched.topic.end(TOPIC)
    watched.look(5.0)
    assert watched.topic.end(TOPIC) > start
    watched.clock.advance(0.1)
    assert watched.idle()
    end = watched.topic.end(TOPIC)
    watched.clock.advance(1000.0)
    assert watched.topic.end(TOPIC) == end


def test_there_are_ten_snapshots_a_second_however_many_look(watched: Watched) -> None:
    start = watched.topic.end(TOPIC)
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(watched.topic.looking())
        watched.clock.advance(2.0)
    assert 20 <= watched.topic.end(TOPIC) - start <= 21


def test_a_poll_that_comes_again_and_again_gets_ten_a_second(watched: Watched) -> None:
    offsets: list[int] = []
    for _ in range(50):
        with watched.topic.looking():
            poll = watched.poll(offsets[-1] if offsets else NOW_ON)
            while not poll.done():
                watched.clock.advance(0.001)
        offsets.append(poll.result())
        watched.clock.advance(0.003)
    assert offsets == list(range(offsets[0], offsets[0] + 50))
    assert watched.clock.time() == pytest.approx(1005.0, abs=0.2)


def test_only_the_last_ones_are_kept(watched: Watched) -> None:
    watched.look(60.0)
    end = watched.topic.end(TOPIC)
    for offset in (0, end - KEPT - 1, end - KEPT):
        offsets = []
        while offset < end:
            messages, offset = watched.read(offset)
            assert len(json.dumps(messages)) < 2 * PAGE_BYTES, "the rest is for the next fetch"
            offsets += [message["offset"] for message in messages]
        assert offsets == list(range(end - KEPT, end))
        assert offset == end
    messages, next_offset = watched.read(end - 5, limit=2)
    assert [message["offset"] for message in messages] == [end - 5, end - 4]
    assert next_offset == end - 3


def test_an_offset_ahead_of_the_end_is_the_next_one(watched: Watched) -> None:
    watched.look(60.0)
    end = watched.topic.end(TOPIC)
    assert watched.topic.start(TOPIC, NOW_ON) == end
    assert watched.topic.start(TOPIC, 0) == end - KEPT
    with watched.topic.looking():
        poll = watched.poll(NOW_ON)
        assert not poll.done()
        watched.clock.advance(0.2)
    assert poll.result() == end + 1


def test_offsets_grow_over_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    before = Watched()
    before.look(60.0)
    now += 60.0
    assert Watched().topic.end(TOPIC) >= before.topic.end(TOPIC) - 1
    now += 0.2
    assert Watched().topic.end(TOPIC) > before.topic.end(TOPIC)


def test_a_snapshot_shows_where_each_operation_is(watched: Watched) -> None:
    for timeout in (0.005, 0.005, 0.1, 5.0, 100.0):
        watched.purgatory.try_complete_else_watch(Delay(timeout), ["key"])
    wheels = watched.topic.snapshot()["purgatories"]["fetch"]["wheels"]
    assert [wheel["unit"] for wheel in wheels][:4] == [1, 20, 400, 8000]
    found = [
        (level, (slot - wheel["hand"]) % len(wheel["counts"]), count)
        for level, wheel in enumerate(wheels, 1)
        for slot, count in enumerate(wheel["counts"])
        if count
    ]
    # The hand's own bucket is the span that has begun; at 1000.0 all levels stand at the beginning of one.
    assert found == [(1, 5, 2), (2, 5, 1), (3, 12, 1), (4, 12, 1)]


def test_the_hands_go_with_the_clock_when_nothing_is_due(watched: Watched) -> None:
    watched.purgatory.try_complete_else_watch(Delay(100.0), ["key"])
    watched.clock.advance(1.234)
    hands = [wheel["hand"] for wheel in watched.topic.snapshot()["purgatories"]["fetch"]["wheels"]]
    tick = int(watched.clock.time() / 0.001)
    assert hands[:4] == [tick % 20, tick // 20 % 20, tick // 400 % 20, tick // 8000 % 20]


def test_waits_are_counted_by_outcome_and_length(watched: Watched) -> None:
    flag = watched.purgatory.try_complete_else_watch(Flag(timeout=10.0), ["flag"])
    gone = watched.purgatory.try_complete_else_watch(Delay(10.0), ["gone"])
    watched.purgatory.try_complete_else_watch(Delay(2.0), ["delay"])
    watched.clock.advance(0.3)
    flag.ready = True
    watched.purgatory.check_and_complete("flag")
    gone.cancel()
    at_once = Flag(timeout=1.0)
    at_once.ready = True
    watched.purgatory.try_complete_else_watch(at_once, ["flag"])
    watched.clock.advance(10.0)
    watched.purgatory.try_complete_else_watch(Delay(60.0), ["closed"])
    watched.clock.advance(4.0)
    watched.purgatory.complete_all()
    waits = watched.topic.snapshot()["purgatories"]["fetch"]["waits"]

    def bounds(outcome: str) -> list[float]:
        return [bound for bound, count in zip([*BOUNDS, 1e9], waits[outcome], strict=True) for _ in range(count)]

    assert (bounds("satisfied"), bounds("expired"), bounds("cancelled")) == ([0.5], [2.0], [0.5])
    assert (bounds("closed"), bounds("failed")) == ([5.0], [])


class Shown:
    """Demo traffic, and the time since it was last read."""

    def __init__(self) -> None:
        self.clock = VirtualClock(1000.0)
        self.unseen = 0.0
        self.demo = Demo(lambda: self.unseen, clock=self.clock, draw=random.Random(7))

    def advance_until(self, condition: Callable[[], bool]) -> None:
        end = self.clock.time() + 100.0
        while not condition():
            assert self.clock.time() < end
            self.clock.advance(0.05)


@pytest.fixture
def shown() -> Shown:
    return Shown()


@pytest.mark.parametrize("pending", [1, 10, 300, MAX_PENDING])
def test_the_demo_keeps_that_many_waiting(shown: Shown, pending: int) -> None:
    shown.demo.keep(pending)
    shown.advance_until(lambda: shown.demo.purgatory.num_delayed >= 0.98 * pending)
    least = pending
    for _ in range(200):
        shown.clock.advance(0.05)
        assert shown.demo.purgatory.num_delayed <= pending
        least = min(least, shown.demo.purgatory.num_delayed)
    assert least >= 0.95 * pending - 3


def test_about_half_of_the_demo_completes_by_its_condition(shown: Shown) -> None:
    shown.demo.keep(1000)
    shown.clock.advance(300.0)
    done = shown.demo.purgatory.statistics()
    assert 0.4 < done.satisfied / (done.satisfied + done.expired) < 0.6
    assert done.cancelled == done.failed == 0
    assert all(shown.demo.purgatory.timer.statistics().levels[1:4])


def test_the_demo_comes_and_goes_in_slices(shown: Shown) -> None:
    pending = [0]
    for wanted in (5000, 100, 2000, 0):
        shown.demo.keep(wanted)
        for _ in range(60):
            shown.clock.advance(0.05)
            pending.append(shown.demo.purgatory.num_delayed)
        assert abs(pending[-1] - wanted) < 0.05 * wanted + 1
    # A slice, and what finishes by itself meanwhile.
    assert max(abs(after - before) for before, after in pairwise(pending)) < 400


def test_zero_ends_the_demo_and_nothing_is_scheduled(shown: Shown) -> None:
    shown.demo.keep(1000)
    shown.clock.advance(5.0)
    shown.demo.keep(0)
    shown.advance_until(lambda: not shown.demo.purgatory.num_delayed)
    shown.clock.advance(200.0)
    assert "scheduled=0" in repr(shown.clock)


def test_the_demo_ends_after_a_while_without_a_reader(shown: Shown) -> None:
    shown.demo.keep(1000)
    shown.clock.advance(30.0)
    assert shown.demo.pending == 1000
    shown.unseen = UNSEEN + 1
    shown.clock.advance(200.0)
    assert shown.demo.pending == shown.demo.purgatory.num_delayed == 0
    assert "scheduled=0" in repr(shown.clock)


def test_the_demo_begins_before_the_first_reader(shown: Shown) -> None:
    shown.unseen = float("inf")
    shown.demo.keep(100)
    shown.clock.advance(UNSEEN - 1)
    assert shown.demo.pending == 100
    assert shown.demo.purgatory.num_delayed > 90


def test_a_demo_whose_purgatory_is_closed_makes_no_more(shown: Shown) -> None:
    shown.demo.keep(1000)
    shown.clock.advance(1.0)
    shown.demo.purgatory.close()
    shown.clock.advance(10.0)
    assert shown.demo.purgatory.num_delayed == 0
    assert "scheduled=0" in repr(shown.clock)


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_over_http(tmp_path: Path) -> None:
    with running(tmp_path, "--demo") as server:
        async with server.client() as client:
            messages = await client.get("/topics/__statistics/messages", params={"offset": NOW_ON, "wait": 300})
            (message,) = messages.json()["messages"]
            assert messages.json()["next_offset"] == message["offset"] + 1
            assert list(message["value"]["purgatories"]) == ["fetch", "produce", "throttle", "demo"]
            # The poll that asks is an operation like all others.
            assert message["value"]["purgatories"]["fetch"]["statistics"]["num_delayed"] == 1
            _, offset = await fetch(client, "__statistics", offset=message["offset"], min_messages=3, wait=300)
            assert offset == message["offset"] + 3

            assert (await client.put("/demo", json={"pending": 100})).json() == {"pending": 100}
            await until_waiting(client, 100, "demo")
            assert (await client.put("/demo", json={"pending": 0})).json() == {"pending": 0}
            await until_waiting(client, 0, "demo")
            assert 'purgatory="demo"' in (await client.get("/metrics")).text
            await client.put("/demo", json={"pending": 1000})
            await until_waiting(client, 1000, "demo")  # and the server stops in the middle of it


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_the_servers_own_topics_are_refused_to_others(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        async with server.client() as client:
            for topic in ("__statistics", "__other", "__"):
                refused = await client.post(f"/topics/{topic}/messages", json={"value": 1})
                assert (refused.status_code, "server's own" in refused.json()["error"]) == (403, True)
            assert (await client.get("/topics/__other/messages")).status_code == 404
            assert (await client.get("/topics/__statistics/messages?replica=r1")).status_code == 400
            assert await publish(client, "_one", 1) == 0
            assert (await statistics(client))["num_delayed"] == 0


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_bad_requests_for_the_demo(tmp_path: Path) -> None:
    with running(tmp_path / "without") as server:
        async with server.client() as client:
            refused = await client.put("/demo", json={"pending": 10})
            assert (refused.status_code, "--demo" in refused.json()["error"]) == (403, True)
            assert "demo" not in (await client.get("/statistics")).json()
    with running(tmp_path / "with", "--demo") as server:
        async with server.client() as client:
            for body in ("", "{", "[]", "{}", "7", '{"pending":1,"more":2}', "[" * 900):
                assert (await client.put("/demo", content=body)).status_code == 400
            for pending in (-1, 10_001, 1.5, True, "10", None, [1], 10**30):
                refused = await client.put("/demo", json={"pending": pending})
                assert (refused.status_code, "from 0 to 10000" in refused.json()["error"]) == (400, True)
            assert (await client.put("/demo", content=b"x" * 2_000_000)).status_code == 413
            assert (await client.post("/demo", json={"pending": 10})).status_code == 405
            assert (await statistics(client, "demo"))["num_delayed"] == 0
