"""The demo traffic, on a virtual clock and over HTTP."""

import json
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from purgatory import VirtualClock
from purgatory.streams.engine.demo import FIRST, MAX_PENDING, UNSEEN, Demo
from tests.streams.serving import served


class Shown:
    def __init__(self) -> None:
        self.clock = VirtualClock(1000.0)
        self.unseen = 0.0
        self.demo = Demo(lambda: self.unseen, clock=self.clock, draw=random.Random(7))

    def has_ended(self) -> bool:
        """Whether nothing waits, and nothing is scheduled."""
        return self.demo.purgatory.num_delayed == 0 and "scheduled=0" in repr(self.clock)


@pytest.fixture
def shown() -> Shown:
    return Shown()


def test_about_half_of_the_demo_completes_by_its_condition(shown: Shown) -> None:
    shown.demo.keep(300)
    shown.clock.advance(150.0)
    done = shown.demo.purgatory.statistics()
    assert 0.4 < done.satisfied / (done.satisfied + done.expired) < 0.6
    assert done.cancelled == done.failed == 0
    assert all(shown.demo.purgatory.timer.statistics().levels[1:4])


def test_demo_comes_and_goes_in_slices_and_keeps_that_many_waiting(shown: Shown) -> None:
    pending = [0]
    for wanted in (MAX_PENDING, 1, 300, 10, 2000, 0):
        shown.demo.keep(wanted)
        for _ in range(200):
            shown.clock.advance(0.05)
            pending.append(shown.demo.purgatory.num_delayed)
        assert 0.95 * wanted - 3 <= min(pending[-100:]) <= max(pending[-100:]) <= wanted
    # A slice, and what finishes by itself meanwhile.
    assert max(abs(after - before) for before, after in pairwise(pending)) < 400
    assert shown.has_ended()


def test_demo_ends_after_a_while_without_a_reader(shown: Shown) -> None:
    for pending, unseen, seconds in ((1000, 0.0, 30.0), (100, float("inf"), UNSEEN - 1)):  # or before there is one
        shown.unseen = unseen
        shown.demo.keep(pending)
        shown.clock.advance(seconds)
        assert shown.demo.pending == pending
    shown.clock.advance(200.0)
    assert shown.demo.pending == 0
    assert shown.has_ended()


def test_demo_waits_for_a_viewer_unless_one_has_chosen(shown: Shown) -> None:
    shown.demo.seen()
    assert shown.demo.purgatory.num_delayed == shown.demo.pending == 300
    shown.unseen = UNSEEN + 1
    shown.clock.advance(200.0)
    assert shown.demo.purgatory.num_delayed == 0
    shown.unseen = 0.0
    for _ in range(2):
        shown.demo.seen()
        assert shown.demo.purgatory.num_delayed == 300
    shown.demo.keep(0)
    shown.demo.seen()
    assert shown.demo.pending == 0


def test_demo_whose_purgatory_is_closed_makes_no_more(shown: Shown) -> None:
    shown.demo.keep(1000)
    shown.clock.advance(1.0)
    shown.demo.purgatory.close()
    shown.clock.advance(10.0)
    assert shown.has_ended()


@pytest.fixture
def http(tmp_path: Path) -> Iterator[httpx.Client]:
    with served(data=str(tmp_path), demo=True) as (_, http):
        yield http


def worker_of(http: httpx.Client) -> dict[str, Any]:
    (worker,) = http.get("/v1/statistics").json()["workers"]
    return cast(dict[str, Any], worker)


class TestOverHttp:
    def test_demo_is_started_and_ended_over_http(self, http: httpx.Client) -> None:
        def until_waiting(count: int) -> None:
            pending = -1
            while pending != count:
                purgatories = worker_of(http)["purgatories"]
                assert list(purgatories) == ["read", "demo"]
                assert purgatories["read"]["statistics"]["num_delayed"] == 0
                pending = purgatories["demo"]["statistics"]["num_delayed"]

        for pending in (100, 0, 1000):  # and the server stops in the middle of it
            assert http.put("/v1/demo", json={"pending": pending}).json() == {"pending": pending}
            until_waiting(pending)

    def test_bad_bodies_change_nothing(self, http: httpx.Client) -> None:
        for given in (-1, 10_001, 1.5, True, "10", None, [1], 10**30):
            for numbered in ({"pending": given}, given):
                response = http.put("/v1/demo", content=json.dumps(numbered))
                assert response.status_code == 400
                assert "pending must be an integer from 0 to 10000" in response.json()["error"]["message"]
        for body in (b"", b"{", b"\xff", b"[" * 900):
            response = http.put("/v1/demo", content=body)
            assert (response.status_code, response.json()["error"]["message"]) == (400, "the body must be JSON")
        assert http.put("/v1/demo", content=b"x" * 2000).status_code == 413
        assert worker_of(http)["demo"] == FIRST  # as if nothing had been asked for

    def test_server_without_the_option_refuses(self, tmp_path: Path) -> None:
        with served(data=str(tmp_path)) as (_, http):
            response = http.put("/v1/demo", json={"pending": 10})
            assert (response.status_code, "--demo" in response.json()["error"]["message"]) == (403, True)
            worker = worker_of(http)
            assert (worker["demo"], list(worker["purgatories"])) == (None, ["read"])
