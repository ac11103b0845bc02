"""The snapshots for the page, and its polls: on a virtual clock, over HTTP, and of several servers on one database."""

import json

import httpx
import pytest

from purgatory import Delay, DelayedOperationPurgatory, PurgatoryClosed, PurgatoryFull, VirtualClock
from purgatory.asgi import parking_statistics
from purgatory.streams.engine.live import BOUNDS, MAX_POLLS, POLL, Live
from tests.streams.pages import is_idle, live
from tests.streams.serving import served, wait_until
from tests.support.operations import Flag
from tests.support.servers import PostgresServer


class Watched:
    def __init__(self) -> None:
        self.clock = VirtualClock(1000.0)
        self.purgatory = DelayedOperationPurgatory("read", clock=self.clock)
        self.live = Live("web-1", self.purgatory)

    def looked_at(self, seconds: float) -> list[int]:
        """The numbers that a page gets in so many seconds."""
        end = self.clock.time() + seconds
        numbers: list[int] = []
        while self.clock.time() < end:
            poll = self.live.poll(numbers[-1] if numbers else None)
            while not poll.done():
                self.clock.advance(0.001)
            numbers.append(poll.result())
        return numbers

    def has_nothing_scheduled(self) -> bool:
        return "scheduled=0" in repr(self.clock)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_nothing_is_scheduled_without_a_poll(watched: Watched) -> None:
    assert watched.has_nothing_scheduled()
    assert watched.looked_at(5.0)
    number = watched.live.number
    watched.clock.advance(2 * POLL)  # the timer of the last poll is left until then
    assert watched.has_nothing_scheduled()
    watched.clock.advance(1000.0)
    assert watched.live.number == number


def test_snapshots_are_made_at_most_ten_times_a_second(watched: Watched) -> None:
    numbers = watched.looked_at(2.0)
    assert numbers == list(range(1, len(numbers) + 1))
    assert 19 <= len(numbers) <= 21


def test_all_polls_get_the_same_snapshot(watched: Watched) -> None:
    watched.looked_at(1.0)
    number = watched.live.number
    # The second number is another process's.
    polls = [watched.live.poll(after) for after in [number, 2**53 - 1] * 25]
    assert not any(poll.done() for poll in polls)
    watched.clock.advance(0.1)
    assert {poll.result() for poll in polls} == {number + 1}
    assert json.loads(watched.live.answer())["number"] == number + 1


def test_poll_that_lags_behind_is_answered_at_once_unless_the_snapshot_is_old(watched: Watched) -> None:
    watched.looked_at(1.0)
    number = watched.live.number
    assert watched.live.poll(number - 5).result() == watched.live.poll(None).result() == number
    watched.clock.advance(60.0)
    polls = [watched.live.poll(after) for after in (None, number - 5, number)]
    assert not any(poll.done() for poll in polls)
    watched.clock.advance(0.01)
    assert {poll.result() for poll in polls} == {number + 1}


def test_too_many_polls_are_refused(watched: Watched) -> None:
    for _ in range(MAX_POLLS):
        watched.live.poll(None)
    with pytest.raises(PurgatoryFull):
        watched.live.poll(None)


async def test_closing_answers_the_polls() -> None:
    watched = Watched()
    polls = [watched.live.poll(None) for _ in range(3)]
    await watched.live.aclose()
    assert {poll.result() for poll in polls} == {0}
    assert json.loads(watched.live.answer()) == {"number": 0, "workers": []}
    with pytest.raises(PurgatoryClosed):
        watched.live.poll(None)
    watched.live.note_viewer()
    watched.clock.advance(2 * POLL)
    assert watched.live.number == 0
    assert watched.has_nothing_scheduled()


def test_polls_are_not_among_the_figures(watched: Watched) -> None:
    watched.looked_at(2.0)
    watched.live.poll(watched.live.number)
    purgatories = watched.live.snapshot()["purgatories"]
    assert list(purgatories) == ["read"]
    assert purgatories["read"]["statistics"]["num_delayed"] == 0
    assert purgatories["read"]["statistics"]["satisfied"] == 0


def test_snapshot_shows_where_each_operation_is(watched: Watched) -> None:
    for timeout in (0.005, 0.005, 0.1, 5.0, 100.0):
        watched.purgatory.try_complete_else_watch(Delay(timeout), ["key"])
    wheels = watched.live.snapshot()["purgatories"]["read"]["wheels"]
    assert [wheel["unit"] for wheel in wheels][:4] == [1, 20, 400, 8000]
    found = [
        (level, (slot - wheel["hand"]) % len(wheel["counts"]), count)
        for level, wheel in enumerate(wheels, 1)
        for slot, count in enumerate(wheel["counts"])
        if count
    ]
    # The hand's own bucket is the span that has begun; at 1000.0 all levels stand at the beginning of one.
    assert found == [(1, 5, 2), (2, 5, 1), (3, 12, 1), (4, 12, 1)]


def test_hands_go_with_the_clock_when_nothing_is_due(watched: Watched) -> None:
    watched.purgatory.try_complete_else_watch(Delay(100.0), ["key"])
    watched.clock.advance(1.234)
    hands = [wheel["hand"] for wheel in watched.live.snapshot()["purgatories"]["read"]["wheels"]]
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
    waits = watched.live.snapshot()["purgatories"]["read"]["waits"]

    def bounds(outcome: str) -> list[float]:
        return [bound for bound, count in zip([*BOUNDS, 1e9], waits[outcome], strict=True) for _ in range(count)]

    assert (bounds("satisfied"), bounds("expired"), bounds("cancelled")) == ([0.5], [2.0], [0.5])
    assert (bounds("closed"), bounds("failed")) == ([5.0], [])


class TestOverHttp:
    def test_poll_without_a_number_is_answered_at_once(self, http: httpx.Client) -> None:
        response = http.get("/v1/statistics")
        assert (response.status_code, response.headers["cache-control"]) == (200, "no-store")
        answer = response.json()
        assert list(answer) == ["number", "workers"]
        (worker,) = answer["workers"]
        assert list(worker["purgatories"]) == ["read"]
        later = http.get("/v1/statistics", params={"after": answer["number"]}).json()
        assert later["number"] > answer["number"]

    @pytest.mark.parametrize("after", ["", "-1", "1.5", "\u0663", str(2**53), "9" * 20])
    def test_bad_numbers_are_refused(self, http: httpx.Client, after: str) -> None:
        response = http.get("/v1/statistics", params={"after": after})
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith(f"after must be an integer from 0 to {2**53 - 1}, not '")

    def test_polls_are_parked(self, http: httpx.Client) -> None:
        answer = http.get("/v1/statistics").json()
        before = parking_statistics()
        for _ in range(3):
            answer = http.get("/v1/statistics", params={"after": answer["number"]}).json()
        after = parking_statistics()
        assert after.parked > before.parked
        assert after.not_parked == before.not_parked


def waits(http: httpx.Client) -> list[int]:
    """How many reads wait, of each server that a page sees, in order, by the next snapshots."""
    after = http.get("/v1/statistics").json()["number"]
    workers = http.get("/v1/statistics", params={"after": after}).json()["workers"]
    return sorted(each["purgatories"]["read"]["statistics"]["num_delayed"] for each in workers)


class TestServersOnOneDatabase:
    def test_each_server_on_a_database_shows_all_of_them(self, database: str) -> None:
        with served(database=database) as (_, here), served(database=database) as (_, there):
            there.put("/v1/stream/a")
            with there.stream("GET", "/v1/stream/a?offset=-1&live=sse") as waiting:
                lines = waiting.iter_lines()  # without which the response would be closed
                assert next(lines) == "event: control"
                wait_until(lambda: waits(here) == waits(there) == [0, 1])
            wait_until(lambda: waits(here) == waits(there) == [0, 0])

    def test_nothing_is_scheduled_without_a_page(self, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("purgatory.streams.engine.live.FRESH", 2.0)
        with served(database=database) as (one, here), served(database=database) as (other, _):
            lives = [live(server) for server in (one, other)]
            assert all(is_idle(each) for each in lives)
            wait_until(lambda: len(waits(here)) == 2)
            wait_until(lambda: all(is_idle(each) for each in lives))

    def test_ended_server_is_shown_no_more(self, postgres: PostgresServer) -> None:
        url = postgres.create_database()
        database = url.rpartition("/")[2]
        with served(database=url) as (_, here):
            with served(database=url):
                wait_until(lambda: len(waits(here)) == 2)
            wait_until(lambda: len(waits(here)) == 1)
            # A minute later, its row is deleted.
            postgres.execute("UPDATE durable_streams.snapshots SET at = at - interval '1 minute'", database)
            rows = "SELECT count(*) FROM durable_streams.snapshots"
            wait_until(lambda: waits(here) and postgres.execute(rows, database) == "1\n")

    def test_server_shows_itself_if_the_database_fails(self, postgres: PostgresServer) -> None:
        url = postgres.create_database()
        with served(database=url) as (_, here):
            assert waits(here) == [0]
            postgres.execute("DROP TABLE durable_streams.snapshots", url.rpartition("/")[2])
            assert [waits(here) for _ in range(3)] == [[0]] * 3
