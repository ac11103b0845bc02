"""The cost of subscriptions and of their patterns, in statements, rows and steps, on both databases."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import httpx
import pytest

from purgatory.streams.core import globs, wakes
from purgatory.streams.core import subscriptions as core
from purgatory.streams.core.commands import Command, Create, Delete, Fork
from purgatory.streams.core.errors import Invalid, StreamsError
from purgatory.streams.core.globs import MAX_SEGMENTS, Glob, Patterns
from purgatory.streams.core.offsets import encode
from purgatory.streams.core.transaction import Transaction
from purgatory.streams.engine.streams import Streams
from purgatory.streams.settings import Settings
from purgatory.streams.storage.database import Database
from purgatory.streams.storage.opener import opener
from purgatory.streams.storage.sqlite import WritingDatabase
from tests.streams.serving import Server, applied
from tests.streams.test_subscriptions import PULL, SUBSCRIPTIONS, Core, append, create, refusal, subscribe, worker
from tests.support.costs import lines


class Counted(Core):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.statements = 0
        self.rows = 0
        """Rows that were read, and parameters of statements that were run many times."""
        execute, execute_many = database.execute, database.execute_many

        def count(sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
            found = execute(sql, parameters)
            self.statements += 1
            self.rows += len(found)
            return found

        def count_many(sql: str, parameters: Any) -> None:
            self.statements += 1
            self.rows += len(parameters)
            execute_many(sql, parameters)

        patch: Any = database
        patch.execute, patch.execute_many = count, count_many

    def run(self, *commands: Command[Any]) -> Any:
        """Apply the commands in a transaction, and return the result of the last one."""
        self.statements = self.rows = 0
        return applied(self.database, *commands, now=self.now)

    def paths(self) -> list[str]:
        return [each.path for each in self.run(core.Look("s")).streams]


@pytest.fixture
def counted(settings: Settings) -> Iterator[Counted]:
    with closing(opener(settings)) as found, closing(found.writer()) as database:
        yield Counted(database)


class TestCosts:
    def test_a_subscription_to_many_streams_takes_few_statements(self, counted: Counted) -> None:
        paths = [f"e/{number}" for number in range(1000)]
        counted.run(*map(create, paths))
        view = counted.run(subscribe(None, *paths))
        assert (view.count, len(view.streams)) == (1000, core.PAGE)
        assert counted.statements < 20
        assert counted.rows < 2_200  # a tail and a link each
        assert counted.run(subscribe("e/**", name="t")).count == 1000
        assert counted.statements < 20
        counted.run(core.LinkStreams("t", tuple(f"e/{number}" for number in range(500, 1500))))
        assert counted.statements < 20
        counted.run(core.Unsubscribe("t"))
        assert max(counted.statements, counted.rows) < 10
        assert counted.database.execute("SELECT id FROM subscriptions") == [("s",)]

    def test_appends_deletions_and_claims_do_not_read_all_links(self, counted: Counted) -> None:
        counted.run(create("wakes"), *(create(f"e/{number}") for number in range(1000)))
        counted.run(subscribe("e/**"))
        for command in (
            append("e/1"),  # begins a wake
            append("e/1"),
            append("e/2"),
            create("e/new"),
            Delete("e/3"),
            core.Claim("s", "worker"),
            core.Unlink("s", "e/7"),
        ):
            counted.run(command)
            assert counted.statements < 25
            assert counted.rows < 40
        counted.acknowledge(("e/1", 3), ("e/2", 2), done=True)
        assert counted.rows < 40

    def test_the_subscriptions_of_a_stream_are_read_together(self, counted: Counted) -> None:
        counted.run(create("e/1"), *(subscribe(name=f"{number}") for number in range(100)))
        counted.run(append("e/1"))  # begins the wakes
        assert counted.statements < 25
        counted.run(append("e/1"))
        assert counted.statements < 15

    def test_a_stream_that_no_subscription_has_takes_no_more_statements(self, counted: Counted) -> None:
        counted.run(create("a"))
        counted.run(append("a"))
        before = counted.statements
        counted.run(*(subscribe("e/*", "x", name=f"{number}") for number in range(100)))
        counted.run(append("a"))
        counted.run(append("a"))
        # PostgreSQL is asked who is linked, for all streams of a transaction together.
        assert counted.statements <= before + isinstance(counted.database.links_path, str)

    def test_a_long_configuration_is_stored_as_a_digest(self, counted: Counted) -> None:
        many = subscribe(None, *(f"e/{number}" for number in range(1000)))
        assert [counted.run(many).new for _ in range(2)] == [True, False]
        with pytest.raises(core.AlreadyExists):
            counted.run(subscribe(None, *(f"e/{number}" for number in range(999))))
        found = counted.database.subscription("s")
        assert found is not None
        assert len(found.config) < 100
        # As earlier versions have stored it.
        transaction = Transaction(counted.database, 0.0)
        whole = [many.type, None, sorted(many.streams), None, many.wake_stream, many.lease, None]
        transaction.change_subscription(found).config = json.dumps(whole)
        assert not many.apply(transaction).new


class TestBounds:
    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wakes, "MAX_LINKS", 3)
        monkeypatch.setattr(wakes, "WAKE", 2)

    def test_a_subscription_has_no_more_streams_than_it_may(self, counted: Counted) -> None:
        counted.run(*(create(f"e/{number}") for number in range(4)))
        for refused in (subscribe("**"), subscribe(None, *"abcd"), subscribe("e/[01]", *"abcd")):
            with pytest.raises(core.TooManyLinks, match="must not have more than 3 streams: use several"):
                counted.run(refused)
        counted.run(subscribe("f/*", "a", "b"))
        with pytest.raises(core.TooManyLinks):
            counted.run(core.LinkStreams("s", ("b", "c", "d")))
        for _ in range(2):
            counted.run(core.LinkStreams("s", ("a", "b", "c")))
        counted.run(create("f/1"))
        assert counted.paths() == ["a", "b", "c"]
        counted.run(core.Unlink("s", "a"))
        counted.run(append("f/1"))
        assert counted.paths() == ["b", "c", "f/1"]
        counted.run(Delete("f/1"))
        assert counted.run(core.Look("s")).count == 2

    def test_all_pending_streams_come_with_one_wake_after_the_other(self, counted: Counted) -> None:
        counted.run(subscribe(), create("e/3"), create("e/1"), create("e/2"))
        found = []
        more = True
        while more:
            streams = counted.run(core.Claim("s", "worker")).streams
            found.append([each.path for each in streams])
            more = counted.acknowledge(*((each.path, each.tail) for each in streams), done=True)
        assert found == [["e/3"], ["e/1", "e/2"]]

    def test_a_webhook_acknowledges_nothing_that_its_wake_does_not_list(self, counted: Counted) -> None:
        counted.run(subscribe(kind="webhook"), create("e/3"), create("e/1"), create("e/2"))
        counted.now += 20.0
        counted.run(core.Lapse("s"))  # e/3 must give way
        delivery = counted.run(core.Deliver("s", 5.0))
        assert [each.path for each in delivery.view.streams] == ["e/1", "e/2"]
        counted.run(core.Delivered("s", counted.worker()[1], True, True))
        acked = {each.path: each.link.acked for each in counted.run(core.Look("s")).streams}
        assert acked == {"e/1": 1, "e/2": 1, "e/3": -1}
        delivery = counted.run(core.Deliver("s", 5.0))
        assert [each.path for each in delivery.view.streams] == ["e/3"]

    @pytest.mark.parametrize("kind", ["webhook", "pull-wake"])
    def test_a_wake_of_deleted_streams_has_what_came_meanwhile_or_ends(self, counted: Counted, kind: str) -> None:
        take: Command[Any] = core.Deliver("s", 0.0) if kind == "webhook" else core.Claim("s", "worker")
        counted.run(subscribe(kind=kind), create("e/1"))
        counted.run(create("e/2"), Delete("e/1"))
        taken = counted.run(take)
        view = taken.view if kind == "webhook" else taken
        assert [each.path for each in view.streams] == ["e/2"]
        counted.acknowledge(("e/2", 1), done=True)
        counted.run(append("e/2"))
        counted.run(Delete("e/2"))
        if kind == "webhook":
            assert counted.run(take) is None
        else:
            with pytest.raises(core.NoPendingWork, match="deleted"):
                counted.run(take)

    async def test_a_full_subscription_is_logged_once(
        self, streams: Streams, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("purgatory.streams.engine.streams.MAX_LINKS", 3)
        for _ in range(2):
            await streams.run(subscribe("e/*", *"abc"))
            for number in range(3):
                await streams.run(create(f"e/{number}"))
                await streams.run(append(f"e/{number}"))
            await streams.run(core.Unsubscribe("s"))
            for number in range(3):
                await streams.run(Delete(f"e/{number}"))
        assert caplog.messages == ["the subscription 's' has 3 streams, and gets no others"] * 2

    @pytest.mark.parametrize("seed", range(8))
    def test_commands_in_one_transaction_do_what_they_do_one_by_one(
        self, counted: Counted, writer: WritingDatabase, seed: int
    ) -> None:
        rng = random.Random(seed)
        batches = counted.database
        for _ in range(15):
            actions = [_action(rng) for _ in range(rng.randrange(1, 12))]
            expected = [_outcomes(writer, counted.now, action) for action in actions]
            assert [[outcome] for outcome in _outcomes(batches, counted.now, *actions)] == expected
            for name in "st":
                assert batches.linked(name, "", 99) == writer.linked(name, "", 99)
                assert batches.link_count(name) == writer.link_count(name)
            for path in _PATHS:
                assert batches.links_at(path) == writer.links_at(path)


_PATHS = ("e/1", "e/2", "e/3", "f", "wakes")


def _action(rng: random.Random) -> Callable[[Transaction], Command[Any]]:
    """A command that is made when the state before it is known."""
    path, name, choice, amount = rng.choice(_PATHS), rng.choice("st"), rng.randrange(13), rng.randrange(3)
    kind, pattern = rng.choice(["webhook", "pull-wake"]), rng.choice(["e/*", "**", None])

    def make(transaction: Transaction) -> Command[Any]:
        known = transaction.subscription(name)
        arguments = ("pull-wake", "", 0, (0, 0)) if known is None else worker(known)
        tail = transaction.tail(path)
        commands: list[Command[Any]] = [
            create(path, b"x" * amount),
            append(path),
            append(path),
            Delete(path),
            Create(path, "text/plain", fork=Fork("e/1")),
            subscribe(pattern, *([path] if pattern is None else []), name=name, kind=kind),
            core.LinkStreams(name, (path, "f")),
            core.Unlink(name, path),
            core.Unsubscribe(name) if amount == 0 else core.Look(name, "e", 2),
            core.Claim(name, "worker"),
            core.Acknowledge(name, *arguments, ((path, encode(tail)),), amount > 0),
            core.Delivered(name, arguments[1], True, True),
            core.Deliver(name, -1.0),
        ]
        return commands[choice]

    return make


def _outcomes(database: Database, now: float, *actions: Callable[[Transaction], Command[Any]]) -> list[Any]:
    """What can be compared of the outcomes of actions in one transaction."""
    with database.transaction([], True):
        transaction = Transaction(database, now)
        found = [_outcome(action, transaction) for action in actions]
        database.store(transaction)
    database.stored(transaction)
    return found


def _outcome(action: Callable[[Transaction], Command[Any]], transaction: Transaction) -> Any:
    try:
        result = action(transaction).apply(transaction)
    except StreamsError as error:
        return type(error)
    view = result.view if isinstance(result, core.Delivery) else result
    if isinstance(view, core.View):
        return view.subscription.generation, view.streams, view.count, view.new
    return getattr(result, "tail", result if isinstance(result, bool) else None)


class TestPages:
    def test_streams_of_a_subscription_are_listed_in_pages(self, http: httpx.Client) -> None:
        names = [f"p/{number:03}" for number in range(150)]
        url = f"{SUBSCRIPTIONS}/pages"
        shown = http.put(url, json={"type": "pull-wake", "streams": names, "wake_stream": "w"}).json()
        assert (shown["stream_count"], len(shown["streams"])) == (150, 100)
        for after, limit in (("", 40), ("p/039", 40), ("p/119", 40), ("p/149", 1)):
            page = http.get(url, params={"after": after, "limit": limit}).json()["streams"]
            assert [each["path"] for each in page] == [name for name in names if name > after][:limit]
        assert len(http.get(url).json()["streams"]) == 100
        assert http.get(url, params={"limit": "x"}).status_code == 400
        assert http.post(f"{url}/streams", json={"streams": ["a"] * 1001}).status_code == 400

    def test_a_pattern_of_too_many_streams_is_refused_before_the_writer(
        self, server: Server, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(7):
            http.put(f"/v1/stream/many/{number}", json=1)
        monkeypatch.setattr(wakes, "MAX_LINKS", 3)
        monkeypatch.setattr("purgatory.streams.http.subscriptions._LOOKED", 2)
        commands: list[Any] = []
        asked: list[int] = []
        run, matched = server.application.streams.run, Database.matched

        async def record(command: Any) -> Any:
            commands.append(command)
            return await run(command)

        def count(self: Database, glob: Glob, after: str, limit: int) -> Any:
            asked.append(limit)
            return matched(self, glob, after, limit)

        monkeypatch.setattr(server.application.streams, "run", record)
        monkeypatch.setattr(Database, "matched", count)

        def put() -> httpx.Response:
            asked.clear()
            return http.put(f"{SUBSCRIPTIONS}/many", json={**PULL, "pattern": "many/**"})

        assert refusal(put()) == (403, "TOO_MANY_STREAMS")
        assert (commands, asked) == ([], [2, 2])
        monkeypatch.setattr(wakes, "MAX_LINKS", 7)
        assert put().json()["stream_count"] == 7
        assert [command.matched for command in commands] == [[f"many/{number}" for number in range(7)]]
        assert (put().status_code, asked) == (200, [])

    def test_a_stream_that_comes_during_the_look_is_linked(self, counted: Counted) -> None:
        counted.run(create("e/1"), create("e/2"))
        last_id = counted.database.last_id()
        matched, after = counted.database.matched(Glob("e/*"), "", 10)
        assert (matched, after) == (["e/1", "e/2"], None)
        counted.run(create("e/3"), create("f"), Delete("e/2"))
        view = counted.run(replace(subscribe("e/*", "e/1"), matched=matched, matched_until=last_id))
        assert [(each.path, each.link.acked) for each in view.streams] == [("e/1", 1), ("e/3", 1)]
        assert view.streams[0].short()["link_type"] == "explicit"

    @pytest.mark.parametrize(("pattern", "expected"), [("a/b", 1), ("a/**", 3), ("a/b/*", 1), ("**", 5), ("x/*", 0)])
    def test_a_pattern_finds_streams_in_steps(self, counted: Counted, pattern: str, expected: int) -> None:
        counted.run(*map(create, ("a", "a/b", "a/b/c", "a0", "aa")))
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            some, after = counted.database.matched(Glob(pattern), after, 2)
            found += some
        assert len(found) == expected


class TestGlobs:
    @pytest.mark.parametrize(
        ("pattern", "status"),
        [
            ("/".join("a" * MAX_SEGMENTS), 201),
            ("/".join(["**"] * 500), 201),
            ("/".join("a" * (MAX_SEGMENTS + 1)), 400),
            ("/".join(["a", "**"] * (MAX_SEGMENTS // 2) + ["a"]), 400),
            ("/", 400),
        ],
    )
    def test_segments_of_patterns_are_bounded(self, http: httpx.Client, pattern: str, status: int) -> None:
        assert http.put(f"{SUBSCRIPTIONS}/bounded", json={**PULL, "pattern": pattern}).status_code == status
        http.delete(f"{SUBSCRIPTIONS}/bounded")

    def test_segments_of_new_streams_are_bounded(self, writer: WritingDatabase) -> None:
        applied(writer, create("/".join("a" * MAX_SEGMENTS)))
        with pytest.raises(Invalid, match="more than 64 segments"):
            applied(writer, create("/".join("a" * (MAX_SEGMENTS + 1))))

    @pytest.mark.parametrize("pattern", ["**/a/" * 31 + "b", "**/*/" * 31 + "b", "**/" * 500 + "b", "*/" * 63 + "b"])
    def test_a_match_runs_lines_by_the_segments_of_the_path(self, pattern: str) -> None:
        glob = Glob(pattern)
        path = "/".join("a" * 500)
        assert lines(lambda: glob.matches(path)) <= 4 * 500 + 5

    def test_matches_are_those_of_all_ways_to_read_a_pattern(self) -> None:
        rng = random.Random(1)
        for _ in range(3000):
            pattern = "/".join(rng.choice(["a", "b", "*", "**"]) for _ in range(rng.randrange(1, 6)))
            path = "/".join(rng.choice("abc") for _ in range(rng.randrange(1, 6)))
            expected = _matches(pattern.split("/"), path.split("/"))
            assert Glob(pattern).matches(path) is expected, (pattern, path)

    def test_patterns_are_compiled_and_matched_once_and_paths_are_forgotten(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(globs, "_PATHS", 2)
        compiled: list[str] = []

        class CountedGlob(Glob):
            def __init__(self, pattern: str) -> None:
                compiled.append(pattern)
                super().__init__(pattern)

        monkeypatch.setattr(globs, "Glob", CountedGlob)
        patterns = Patterns()
        assert patterns.matching("a") == ()
        given: list[tuple[str, str | None]] = [("s", "*"), ("t", "a"), ("u", None)]
        for _ in range(3):
            patterns.replace(given)
            for path, expected in (("a", ("s", "t")), ("b", ("s",)), ("c/d", ())):
                assert patterns.matching(path) == expected
        assert patterns.matching("c/d") is patterns.matching("c/d")
        assert len(patterns._found) == 2
        patterns.replace([*given, ("v", "c/**")])
        assert patterns.matching("c/d") == ("v",)
        assert compiled == ["*", "a", "c/**"]


def _matches(pattern: list[str], path: list[str]) -> bool:
    if not pattern:
        return not path
    first, *rest = pattern
    if first == "**":
        return any(_matches(rest, path[begin:]) for begin in range(len(path) + 1))
    return bool(path) and first in ("*", path[0]) and _matches(rest, path[1:])


def test_links_of_few_paths_are_remembered(writer: WritingDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purgatory.streams.storage.sqlite._CACHED", 1)
    applied(writer, subscribe(None, "a", "b"))
    for path in "abab":
        assert list(writer.links_at(path)) == ["s"]
        assert len(writer._links) == 1
