"""The report: its verdicts, its advice in words, its tables, and the page in a browser."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.journal import SCHEMA
from purgatory.pipeline import trace
from purgatory.pipeline.generate import PRESETS, Traffic, generate
from purgatory.pipeline.report import CLIENT, REQUEST, Report, report
from purgatory.spark.errors import PipelineError
from tests.pipeline.traces import START, row
from tests.support.browser import browser
from tests.support.paths import ROOT

KIND = ("fetch", "DelayedFetch")
Row: TypeAlias = dict[str, Any]
Maker: TypeAlias = Callable[..., "Made"]

HOSTILE = [
    "<script>alert(1)</script>",
    "</title><img src=https://example.com/x onerror=alert(1)>",
    "$x$",
    r"$\frac{1}{0$",
    "k" * 1000,
    "😀漢字ع",
    "_hidden",
    "{{ 7 * 7 }}{% raw %}",
    "line\nbreak\ttab\x00nul\u202egnirts",
    "",
    "'\"&amp;",
]

LOOK = """
const texts = [...document.querySelectorAll("svg text")]
return [document.documentElement.scrollWidth, innerWidth, getComputedStyle(document.body).backgroundColor,
        texts.map(each => getComputedStyle(each).fill), texts.map(each => each.getBoundingClientRect().height)]
"""
"""Of the page: its width, the window's, its colour, and the colours and heights of the texts in its plots."""


class Page(HTMLParser):
    """The elements that a browser would find."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


class Made:
    """A report that has been made."""

    def __init__(self, found: Report) -> None:
        self.found = found
        self.advice = found.advice
        self.verdicts = {each.text: each for each in found.verdicts}
        self.page = Page(found.page.read_text("utf-8"))

    def table(self, name: str) -> list[Row]:
        rows: list[Row] = pq.read_table(self.found.page.parent / "tables" / name).to_pylist()
        return rows

    def ladder(self, world: str = "leave") -> list[Row]:
        """What timeouts would do if clients ask again, or leave."""
        return [rung for rung in self.table("ladder") if rung["world"] == world]

    def reason(self) -> str:
        """Why there is no advice."""
        (advised,) = self.table("advice")
        assert advised["timeout_s"] is None
        return str(advised["reason"])

    def verdict(self, words: str) -> str:
        """The colour of the statement that has these words."""
        (colour,) = {each.colour for text, each in self.verdicts.items() if words in text}
        return colour


@pytest.fixture(scope="module")
def make(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Maker:
    def made(rows: Iterable[Row] | pa.Table, **options: Any) -> Made:
        """A report on rows, which may have the column `instance`."""
        if isinstance(rows, pa.Table):
            table = rows
        else:
            given = list(rows)
            instances = pa.array([each.get("instance", "web-1") for each in given])
            table = pa.Table.from_pylist(given, SCHEMA).append_column("instance", instances)
        frame = spark.createDataFrame(table.append_column("file", pa.repeat("a", len(table))))
        found = trace.cube(frame, options.pop("slot", 1), options.pop("now", None))
        return Made(
            report(
                found,
                str(tmp_path_factory.mktemp("report") / "out"),
                **{"timeout_rate": 0.1, "after_expiry": "leave", **options},
            )
        )

    return made


def service(count: int = 4000, median: float = 0.5, timeout: float = 5.0, **columns: Any) -> list[Row]:
    """Operations of some minutes with log-normal times, on a server that was closed after the last."""
    random = np.random.default_rng(len(columns) + count)
    rows = []
    for arrived, takes in zip(
        sorted(random.uniform(0, 200, count)), median * random.lognormal(0, 1, count), strict=True
    ):
        expired = takes > timeout
        waited = timeout + 0.001 if expired else float(takes)
        outcome = "expired" if expired else "satisfied"
        rows.append(row(float(arrived), timeout_s=timeout, waited_s=waited, outcome=outcome, missed=False) | columns)
    closed = row(200.0, timeout_s=timeout, waited_s=0.1, outcome="closed", missed=False)
    return [*rows, closed | {name: columns[name] for name in columns if name in ("instance", "operation", "purgatory")}]


class TestAdvice:
    def test_a_timeout_that_keeps_the_share(self, make: Maker) -> None:
        made = make(service())
        assert made.advice[KIND].endswith(
            " s. With this timeout at most 10 % expire, with a probability of 90 % if the days ahead are like this one."
        )
        (advised,) = made.table("advice")
        assert advised["low_s"] < advised["estimate_s"] < advised["timeout_s"] < advised["high_s"]
        assert 0.5 * np.exp(1.2816) == pytest.approx(advised["timeout_s"], rel=0.15)
        assert (advised["rate"], advised["reason"]) == (0.1, None)
        ladder = made.ladder()
        (safe,) = [rung for rung in ladder if rung["is_safe"]]
        (used,) = [rung for rung in ladder if rung["is_used"]]
        assert safe["timeout"] == advised["timeout_s"]
        assert used["timeout"] == 5.0
        assert safe["rate"] <= 0.1
        for before, after in pairwise(ladder):
            assert before["timeout"] < after["timeout"]
            assert before["rate"] >= after["rate"]
            assert before["empty_answers"] >= after["empty_answers"]
            assert before["pending"] <= after["pending"]
        # Twenty operations a second, which wait for 0.82 s on average if nothing ends them.
        assert used["pending"] == pytest.approx(20 * 0.77, rel=0.1)
        assert used["empty_answers"] == pytest.approx(20 * used["rate"], rel=0.05)

    def test_a_rate_that_is_not_reached_says_what_to_do(self, make: Maker) -> None:
        made = make(service(timeout=0.5))
        advice = "% still expire at 500 ms, the longest timeout in use: raise that to 5 s for an hour, and report ag"
        assert advice in made.advice[KIND]
        assert made.reason() == "unreached"
        # The timeout of one who waits for two days is not what is in use.
        rows = service(timeout=0.5)
        rows[100] |= {"timeout_s": 172_800.0, "deadline_s": 172_800.0, "waited_s": 60.0, "outcome": "satisfied"}
        rows[100]["late_s"] = None
        assert make(rows).advice[KIND].endswith("Give all of them a timeout of 5 s for an hour, and report again.")

    def test_short_and_long_work_is_not_pooled(self, make: Maker) -> None:
        made = make(service(3000, 0.1, 1.0) + service(1500, 4.0, 20.0), timeout_rate=0.02)
        assert made.advice[KIND].startswith("No answer: operations with short timeouts end differently from those wi")
        assert made.reason() == "strata"

    def test_too_few_that_last_so_long(self, make: Maker) -> None:
        rows = [row(number / 10, waited_s=0.1, timeout_s=5.0) for number in range(2000)]
        rows += [row(100.0 + number / 1000, waited_s=1.0, timeout_s=5.0) for number in range(500)]
        made = make([*rows, row(201.0, waited_s=0.1, timeout_s=5.0, outcome="closed")])
        assert made.advice[KIND].startswith(
            "Too few operations last that long, or all of them do at the same time. It is ab"
        )
        assert made.reason() == "few"

    def test_a_journal_that_ends_too_soon(self, make: Maker) -> None:
        made = make([row(0.0)])
        assert made.advice[KIND].startswith("No answer yet: slow operations of the last 1 s may have no row yet")
        assert made.reason() == "unsettled"
        assert made.table("rates") == made.ladder() == []

    def test_a_single_client_that_is_patient_takes_no_answer_away(self, make: Maker) -> None:
        rows = service()[:-1]  # of a server that still runs
        advised = make(rows).table("advice")
        rows[100] |= {"timeout_s": 172_800.0, "deadline_s": 172_800.0, "outcome": "satisfied", "late_s": None}
        made = make(rows)
        (patient,) = made.table("advice")
        assert patient["timeout_s"] == pytest.approx(advised[0]["timeout_s"], rel=0.1)
        for world in ("leave", "ask-again"):
            (used,) = [rung for rung in made.ladder(world) if rung["is_used"]]
            assert used["timeout"] == rows[0]["timeout_s"]
            assert made.ladder(world)[0]["timeout"] <= used["timeout"] / 10

    def test_operations_without_a_deadline(self, make: Maker) -> None:
        rows = [each | {"timeout_s": None, "deadline_s": None} for each in service(timeout=1e6)]
        made = make(rows)
        assert " s. With this timeout" in made.advice[KIND]
        assert not any(rung["is_used"] for rung in made.ladder())


def polls(clients: int = 40, timeout: float = 20.0, seconds: float = 400.0, gap: float = 0.01) -> list[Row]:
    """Operations of clients that ask again after each answer, for events of ten keys, one in fifteen seconds."""
    random = np.random.default_rng(clients)
    events = [np.cumsum(random.exponential(15.0, int(seconds))) for _ in range(10)]
    rows = []
    for client in range(clients):
        at, key = float(random.uniform(0, timeout)), client % 10
        while at < seconds:
            wait = float(events[key][np.searchsorted(events[key], at, side="right")]) - at
            expired = wait > timeout
            outcome = "expired" if expired else "satisfied"
            waited = min(wait, timeout)
            rows.append(row(at, keys=[f"key-{key}"], timeout_s=timeout, waited_s=waited, outcome=outcome, missed=False))
            at += waited + gap
    return rows


class TestClientsThatAskAgain:
    def test_the_longest_timeout_is_advised_because_as_many_wait_with_any(self, make: Maker) -> None:
        rows = polls()
        made = make(rows, after_expiry=None)
        assert made.advice[KIND].startswith("Clients ask again: a request for the same key follows ")
        assert ". So a shorter timeout saves no memory. Set the longest timeout that your proxies" in made.advice[KIND]
        assert "operations stay pending." in made.advice[KIND]
        ladder = made.ladder("ask-again")
        assert made.table("ladder")[: len(ladder)] == ladder, "the table begins with what the journal shows"
        for rung in ladder:
            assert rung["pending"] == pytest.approx(40, rel=0.05)
        for timeout in (0.5, 5.0, 20.0):
            (rung,) = [rung for rung in ladder if rung["timeout"] == timeout]
            truth = len(polls(timeout=timeout)) / 400
            assert rung["requests"] == pytest.approx(truth, rel=0.06)
        assert ladder[-1]["timeout"] == 100.0
        assert "If clients ask again" in made.page.text
        assert "Twice the clients are twice the requests" in made.page.text

    def test_both_worlds_are_told_of_if_the_journal_cannot_tell(self, make: Maker) -> None:
        rows = [
            each | {"arrived_at": START + timedelta(seconds=2.0 * round(number / 40))}
            for number, each in enumerate(service())
        ]  # as if by cron
        made = make(rows, after_expiry=None)
        assert "doesn't tell whether clients ask again" in made.advice[KIND]
        assert " If they leave: " in made.advice[KIND]
        assert " If they ask again: " in made.advice[KIND]
        assert made.ladder("leave")
        assert made.ladder("ask-again")

    def test_the_operator_can_say_what_clients_do(self, make: Maker) -> None:
        made = make(polls(), after_expiry="leave")
        assert "ask again" not in made.advice[KIND]
        assert made.table("ladder")[0]["world"] == "leave"
        made = make(service(), after_expiry="ask-again")
        assert made.advice[KIND].startswith("You say that clients ask again. So a shorter timeout saves no memory.")

    def test_figures_of_requests_and_clients_are_those_that_the_pages_have(self) -> None:
        page = (ROOT / "purgatory/uvicorn/README.md").read_text("utf-8")
        assert f"| an HTTP request that does not wait: the server's CPU | {REQUEST * 1e6:.1f} µs |" in page
        assert f" {CLIENT / 1024:.3f} KiB |" in page


class TestVerdicts:
    def test_a_service_that_is_well(self, make: Maker) -> None:
        made = make([*service(instance="web-1"), *service(instance="web-2"), *service(instance="web-3")])
        assert {each.colour for each in made.found.verdicts} == {"green"}
        assert made.verdict("No operation waited for a check that nobody made.") == "green"
        assert made.verdict("No instance of 3 is slow all the time.") == "green"
        assert made.verdict("Operations expire in time, so no event loop is busy.") == "green"

    def test_an_instance_that_is_slow(self, make: Maker) -> None:
        rows = [*service(instance="web-1"), *service(instance="web-2"), *service(3000, 2.0, instance="sick")]
        made = make(rows)
        assert made.found.verdicts[0].colour == "red"
        assert made.found.verdicts[0].text.startswith("sick is slow: fetch / DelayedFetch waits 4.")
        assert " for the others." in made.found.verdicts[0].evidence
        assert " Without it, the advice is " in made.found.verdicts[0].evidence
        assert len([text for text in made.verdicts if "slow" in text]) == 1

    def test_checks_that_nobody_made(self, make: Maker) -> None:
        rows = service()
        for each in rows[:200]:
            each |= {"missed": True, "keys": ["forgotten"], "outcome": "satisfied", "waited_s": 5.001, "late_s": None}
        made = make(rows)
        (text,) = [text for text in made.verdicts if "nobody checked" in text]
        assert text == "fetch / DelayedFetch: nobody checked 200 operations whose condition held."
        assert made.verdicts[text].colour == "red"
        assert " 5 % of the operations count as expired because nobody checked them" in made.advice[KIND]
        assert made.verdicts[text].evidence.endswith("The keys with most of them are forgotten.")
        for each in rows[20:200]:
            each["missed"] = False
        assert make(rows).verdict("nobody checked 20 ") == "amber"

    @pytest.mark.parametrize(("late", "colour"), [(0.005, "green"), (0.05, "amber"), (0.5, "red")])
    def test_a_loop_that_is_busy(self, make: Maker, late: float, colour: str) -> None:
        rows = [
            each | ({"waited_s": 5.0 + late, "late_s": late} if each["outcome"] == "expired" else {})
            for each in service()
        ]
        made = make(rows)
        assert made.verdict("expire in time" if colour == "green" else "The event loop of web-1 is busy") == colour

    def test_an_instance_that_is_slow_for_an_hour(self, make: Maker) -> None:
        random = np.random.default_rng(1)
        rows = []
        for number in range(24_000):
            at, instance = float(random.uniform(0, 8 * 3600)), f"web-{number % 2 + 1}"
            is_slow = instance == "web-2" and 3 * 3600 <= at < 4 * 3600
            waited = float(random.lognormal(-1.0, 0.7)) * (10 if is_slow else 1)
            opened = START + timedelta(seconds=3 * 3600 - 60 if instance == "web-2" and at > 3 * 3600 else 0)
            rows.append(row(at, waited_s=waited, timeout_s=60.0, instance=instance, missed=False, opened_at=opened))
        made = make(rows, slot=600)
        reds = [text for text, each in made.verdicts.items() if each.colour == "red"]
        assert len(reds) == 1, reds
        text = reds[0]
        assert text.startswith("web-2 was slow from 2026-11-21 15:00 to 16:00 UTC: fetch / DelayedFetch waited ")
        evidence = made.verdicts[text].evidence
        assert " It was started again at 14:59:00 UTC." in evidence
        assert "Look at the logs of that time, and report on it alone with --from and --to." in evidence
        assert made.verdict("No instance of 2 is slow all the time.") == "green"
        assert not [text for text in made.verdicts if "as usually" in text], "the hour is explained"
        assert "Started again: web-2 at 2026-11-21 14:59:00 UTC." in made.page.text
        restarts = [each for each in made.table("processes") if each["is_restart"]]
        assert [each["instance"] for each in restarts] == ["web-2"]

    def test_an_hour_in_which_many_expire(self, make: Maker) -> None:
        rows = [
            row(float(at), timeout_s=1.0, missed=False)
            | (
                {"outcome": "expired", "waited_s": 1.001, "late_s": 0.001}
                if 7200 <= at < 10_800 and at % 3 == 0
                else {}
            )
            for at in range(0, 8 * 3600, 5)
        ]
        made = make(rows, slot=600)
        assert made.verdict("33.3 % expired from 2026-11-21 14:00 to 15:00 UTC.") == "amber"

    def test_an_instance_that_is_slow_by_microseconds_is_not(self, make: Maker) -> None:
        rows = [
            row(number / 100, waited_s=waits, instance=name)
            for name, waits in (("web-1", 2e-6), ("web-2", 5e-6))
            for number in range(500)
        ]
        assert make(rows).verdict("No instance of 2 is slow all the time.") == "green"

    def test_clients_that_leave_and_operations_that_fail(self, make: Maker) -> None:
        random = np.random.default_rng(1)
        rows = []
        for number, waits in enumerate(random.lognormal(1.0, 1.0, 6000)):
            ended = {"waited_s": float(waits), "outcome": "failed" if random.random() < 0.1 else "satisfied"}
            if waits > 5.0:  # their own timeout
                ended = {"waited_s": 5.0 + number / 3e5, "outcome": "cancelled"}
            rows.append(row(number / 30, timeout_s=30.0, **ended))
        made = make([*rows, row(201.0, timeout_s=30.0, waited_s=0.1, outcome="closed")])
        (left,) = [each for text, each in made.verdicts.items() if "of the operations are cancelled" in text]
        (failed,) = [each for text, each in made.verdicts.items() if "of the operations fail" in text]
        assert (left.colour, failed.colour) == ("red", "red")
        assert left.evidence.endswith(
            "99 % within 5.02 s. Hardly anything waits longer, so a longer timeout is hardly ever reached."
        )
        for rung in made.ladder():
            assert sum(rung[each] for each in ("rate", "satisfied", "left", "failed")) == pytest.approx(1.0)
        last = made.ladder()[-1]
        truth = {each: sum(one["outcome"] == each for one in rows) / len(rows) for each in ("cancelled", "failed")}
        assert (last["left"], last["failed"]) == pytest.approx((truth["cancelled"], truth["failed"]), abs=0.002)
        few = [each | ({"outcome": "satisfied"} if number % 4 else {}) for number, each in enumerate(rows)]
        assert make(few).verdict("of the operations are cancelled") == "amber"

    def test_a_part_of_a_day_is_compared_with_the_same_hours(self, make: Maker) -> None:
        midnight = START.replace(hour=0)
        rows = [
            row(0.0, waited_s=0.1) | {"arrived_at": midnight + timedelta(days=day, seconds=20 * number)}
            for day, hours in ((0, 24), (1, 10))
            for number in range(hours * 180)
        ]
        before, today = midnight.date(), midnight.date() + timedelta(days=1)
        made = make(rows, compare=before, now=midnight + timedelta(days=9), slot=1800)
        assert made.verdict(f"{today} is like {before}.") == "green"
        assert made.verdicts[f"{today} is like {before}."].evidence.endswith("times, from 00:00 to 10:00 UTC.")
        late = [each for each in rows if each["arrived_at"] >= midnight + timedelta(hours=12)]
        apart = [each for each in late if each["arrived_at"].date() == before]
        apart += [each for each in rows if each["arrived_at"].date() == today]
        made = make(apart, compare=before, now=midnight + timedelta(days=9), slot=1800)
        assert made.verdict(f"{today} has no hour in common with {before}.") == "amber"

    def test_a_day_beside_another(self, make: Maker) -> None:
        def on(day: int, rows: list[Row]) -> list[Row]:
            return [each | {"arrived_at": each["arrived_at"] + timedelta(days=day)} for each in rows]

        before, today = START.date(), START.date() + timedelta(days=1)
        late = START + timedelta(days=9)
        rows = [*service(), *service(operation="Old"), *service(operation="Same")]
        more = [*service(8000, 1.0), *service(operation="New"), *service(operation="Same")]
        made = make([*rows, *on(1, more)], compare=before, now=late, slot=1800)
        assert made.verdict("fetch / New is new.") == made.verdict("fetch / Old is gone.") == "amber"
        assert made.verdict("DelayedFetch arrives 2.0 times as often") == "amber"
        assert made.verdict(" times as long in the median on ") == "amber"
        assert made.verdict("DelayedFetch expires ") == "amber"
        assert not any("Same" in text for text in made.verdicts)
        assert "What has changed?" in made.page.text
        assert {each["day"] for each in made.table("days")} == {str(before), str(today)}
        alike = make([*rows, *on(1, rows)], compare=before, now=late, slot=1800)
        assert alike.verdict(f"{today} is like {before}.") == "green"
        better = make([*more, *on(1, [*service(8000, 0.2), *more])], compare=before, now=late, slot=1800)
        assert better.verdict("DelayedFetch arrives") == "amber"
        for day in (today, START.date() + timedelta(days=5)):
            with pytest.raises(PipelineError, match=f"compare must be an earlier day that has operations, not {day}"):
                make([*rows, *on(1, rows)], compare=day, now=late, slot=1800)


class TestThePage:
    def test_names_are_text_and_no_markup(self, make: Maker) -> None:
        rows = [
            row(
                number / 10, purgatory=name or "x", operation=f"{name}!", keys=[name], missed=True, instance=name or "x"
            )
            for name in HOSTILE
            for number in range(40)
        ]
        made = make(rows)
        tags = {tag for tag, _ in made.page.tags}
        assert not tags & {"script", "img", "iframe", "a", "link"}
        assert not any(name.startswith("on") for _, attributes in made.page.tags for name in attributes)
        assert "<script>alert(1)</script>" in made.page.text
        assert "{{ 7 * 7 }}{% raw %}" in made.page.text
        assert "\u202e" not in made.page.text

    def test_nothing_is_cut_off_and_all_can_be_read(self, make: Maker, spark: SparkSession, tmp_path: Path) -> None:
        traffic: Traffic = replace(PRESETS["service"], rate=200.0, seconds=60.0, operation="W" * 60)
        rows = generate(spark, traffic).toArrow().drop_columns("date")
        made = make(rows, compare=None)
        with browser(tmp_path / "profile") as driver:
            for width in (390, 700, 1280):
                for scheme in ("light", "dark"):
                    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
                    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
                    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
                    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
                    driver.get(made.found.page.as_uri())
                    needed, given, page, fills, heights = driver.execute_script(LOOK)
                    assert needed <= given, (width, scheme)
                    assert page == ("rgb(20, 24, 27)" if scheme == "dark" else "rgb(246, 247, 248)")
                    light = {"rgb(228, 232, 234)", "rgb(163, 174, 181)", "rgb(255, 138, 128)"}
                    dark = {"rgb(28, 34, 38)", "rgb(86, 98, 106)", "rgb(179, 38, 30)"}
                    assert set(fills) <= (light if scheme == "dark" else dark), (width, scheme)
                    assert min(heights) >= 9, (width, scheme)
            logged: Any = driver.get_log("browser")  # type: ignore[no-untyped-call]
            assert logged == []
            # All questions are answered on the first two screens of a laptop.
            bottom = "return document.querySelector('details').getBoundingClientRect().top + scrollY"
            assert driver.execute_script(bottom) <= 1800

    def test_the_page_shows_the_first_operations_and_tables_have_all(self, make: Maker) -> None:
        made = make([row(number / 100, operation=f"Delayed{number % 9}") for number in range(90)])
        assert "3 more operations are in tables/advice." in " ".join(made.page.text.split())
        assert len(made.table("advice")) == len(made.table("operations")) == 9

    def test_operations_of_a_clock_that_is_ahead_are_told_of(self, make: Maker) -> None:
        rows = [row(0.0), row(9999.0, instance="web-2"), row(9999.0, instance="web-2")]
        made = make(rows, now=START + timedelta(seconds=60))
        assert made.table("refused") == [{"instance": "web-2", "operations": 2}]
        assert "2 of web-2" in made.page.text


def test_what_cannot_be_written_is_refused(make: Maker, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    empty = pa.table({})
    with pytest.raises(PipelineError, match="is not an empty directory"):
        report(empty, str(tmp_path))
    with pytest.raises(PipelineError, match="cannot be used: File exists"):
        report(empty, str(tmp_path / "file"))
    with pytest.raises(PipelineError, match="timeout-rate must be a share between 0 and 1, not 1"):
        report(empty, str(tmp_path / "out"), 1.0)
    with pytest.raises(PipelineError, match="there are no operations in these days"):
        make([row(9999.0)], now=START)
