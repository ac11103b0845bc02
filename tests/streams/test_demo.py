"""The demo traffic, on a virtual clock and over HTTP."""

import json
import random
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from purgatory import VirtualClock
from purgatory.streams.engine.demo import FIRST, MAX_PENDING, UNSEEN, Demo
from tests.streams.serving import serving


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
def test_demo_keeps_that_many_waiting(shown: Shown, pending: int) -> None:
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


def test_demo_comes_and_goes_in_slices(shown: Shown) -> None:
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


def test_demo_ends_after_a_while_without_a_reader(shown: Shown) -> None:
    shown.demo.keep(1000)
    shown.clock.advance(30.0)
    assert shown.demo.pending == 1000
    shown.unseen = UNSEEN + 1
    shown.clock.advance(200.0)
    assert shown.demo.pending == shown.demo.purgatory.num_delayed == 0
    assert "scheduled=0" in repr(shown.clock)


def test_demo_begins_before_the_first_reader(shown: Shown) -> None:
    shown.unseen = float("inf")
    shown.demo.keep(100)
    shown.clock.advance(UNSEEN - 1)
    assert shown.demo.pending == 100
    assert shown.demo.purgatory.num_delayed > 90


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
    assert shown.demo.purgatory.num_delayed == 0
    assert "scheduled=0" in repr(shown.clock)


class TestOverHttp:
    def test_demo_is_started_and_ended_over_http(self, tmp_path: Path) -> None:
        with serving(data=str(tmp_path), demo=True) as server, httpx.Client(base_url=server.url, timeout=60) as http:

            def waiting(wanted: int) -> None:
                end = time.monotonic() + 60
                pending = -1
                while pending != wanted:
                    assert time.monotonic() < end
                    (worker,) = http.get("/v1/statistics").json()["workers"]
                    assert list(worker["purgatories"]) == ["read", "demo"]
                    assert worker["purgatories"]["read"]["statistics"]["num_delayed"] == 0
                    pending = worker["purgatories"]["demo"]["statistics"]["num_delayed"]

            assert http.put("/v1/demo", json={"pending": 100}).json() == {"pending": 100}
            waiting(100)
            assert http.put("/v1/demo", json={"pending": 0}).json() == {"pending": 0}
            waiting(0)
            http.put("/v1/demo", json={"pending": 1000})
            waiting(1000)  # and the server stops in the middle of it

    def test_bad_requests_are_refused(self, tmp_path: Path) -> None:
        with serving(data=str(tmp_path), demo=True) as server, httpx.Client(base_url=server.url, timeout=60) as http:
            for body in ("", "{", "\xff", "[" * 900):
                response = http.put("/v1/demo", content=body.encode("latin-1"))
                assert (response.status_code, response.json()["error"]["message"]) == (400, "the body is not JSON")
            for given in (-1, 10_001, 1.5, True, "10", None, [1], 10**30):
                for body in (json.dumps({"pending": given}), json.dumps(given)):
                    response = http.put("/v1/demo", content=body)
                    message = response.json()["error"]["message"]
                    assert (response.status_code, "from 0 to 10000" in message) == (400, True)
            assert http.put("/v1/demo", content=b"x" * 2000).status_code == 413
            (worker,) = http.get("/v1/statistics").json()["workers"]
            assert worker["demo"] == FIRST  # as if nothing had been asked for

    def test_server_without_the_option_refuses(self, tmp_path: Path) -> None:
        with serving(data=str(tmp_path)) as server, httpx.Client(base_url=server.url, timeout=60) as http:
            response = http.put("/v1/demo", json={"pending": 10})
            assert (response.status_code, "--demo" in response.json()["error"]["message"]) == (403, True)
            (worker,) = http.get("/v1/statistics").json()["workers"]
            assert (worker["demo"], list(worker["purgatories"])) == (None, ["read"])
