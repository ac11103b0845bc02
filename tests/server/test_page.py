"""The page, in a real browser on a real server."""

import itertools
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from selenium.webdriver import Chrome, Keys

from tests.server.pages import TOPICS, Page, opened
from tests.support.figures import show, spread
from tests.support.server_process import ServerProcess, running


@contextmanager
def waiting_produces(server: ServerProcess, topic: str, timeouts: list[float]) -> Iterator[None]:
    """Clients that publish and wait for a replica."""
    body = b'{"value": 1}'
    with ExitStack() as stack:
        for timeout in timeouts:
            url = httpx.URL(server.url)
            connection = stack.enter_context(socket.create_connection((url.host, url.port or 80)))
            request = f"POST /topics/{topic}/messages?acks=1&timeout={timeout} HTTP/1.1\r\nHost: {url.host}\r\n"
            connection.sendall(f"{request}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        yield


def test_a_message_published_in_one_tab_appears_in_the_other(page: Page) -> None:
    topic = next(TOPICS)
    page.watch(topic)
    page.until_watched(topic, [])
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    page.open()
    assert page.publish(topic, "hello from there") == f"Stored in {topic}, offset 0."
    assert page.publish(topic, '{"a": [1, null]}', "json") == f"Stored in {topic}, offset 1."
    page.driver.switch_to.window(first)
    page.until_watched(topic, ['{"a":[1,null]}', "hello from there"])


class TestPageContents:
    """It is what the server says of itself."""

    COUNTERS = (
        *("num_delayed", "satisfied", "missed", "expired", "closed", "cancelled"),
        *("completed_at_once", "failed", "purged"),
    )

    def of_the_page(self, page: Page) -> dict[str, Any]:
        levels = [int(text.replace(",", "")) for text in page.texts("#levels-body td:last-child")]
        counters = {name: page.number(f"[data-counter={name}]") for name in self.COUNTERS}
        return {"levels": levels, "centre": page.number("#centre-count"), **counters}

    def of_the_server(self, page_http: httpx.Client, purgatory: str) -> dict[str, Any]:
        statistics = page_http.get("/statistics").json()[purgatory]
        samples = [
            (int(sample.labels["level"]), int(sample.value))
            for family in text_string_to_metric_families(page_http.get("/metrics").text)
            for sample in family.samples
            if sample.name == "purgatory_timer_tasks" and sample.labels["purgatory"] == purgatory
        ]
        levels = [tasks for _, tasks in sorted(samples)]
        while len(levels) > 4 and not levels[-1]:  # rings that nothing has ever waited in are not drawn
            levels.pop()
        counters = {name: statistics[name] for name in self.COUNTERS}
        return {"levels": levels, "centre": statistics["num_delayed"], **counters}

    def until_the_same(self, page: Page, page_http: httpx.Client) -> dict[str, Any]:
        """Wait until the page shows what the server says of `produce`: it is a snapshot behind."""
        shown: dict[str, Any] = page.until(
            lambda: (shown := self.of_the_page(page)) == self.of_the_server(page_http, "produce") and shown
        )
        return shown

    def test_page_shows_counts_of_server(self, page: Page, page_server: ServerProcess, page_http: httpx.Client) -> None:
        topic = next(TOPICS)
        page.choose("produce")
        before = self.of_the_server(page_http, "produce")
        assert before["centre"] == 0
        page.until(lambda: self.of_the_page(page)["satisfied"] == before["satisfied"])
        with waiting_produces(page_server, topic, [300.0] * 30 + [100.0] * 4):
            page.until(lambda: self.of_the_page(page)["centre"] == 34)
            shown = self.until_the_same(page, page_http)
            assert (shown["centre"], shown["levels"][3:]) == (34, [4, 30])
            page.until(lambda: page.texts("#levels-body tr:nth-child(5) td")[2] == "1 of 20")
            # Four are acknowledged, and the others go away.
            page_http.get(f"/topics/{topic}/messages", params={"replica": "r1", "offset": 4, "wait": 0})
            page.until(lambda: self.of_the_page(page)["centre"] == 30)
            assert self.of_the_page(page)["satisfied"] == before["satisfied"] + 4
        page.until(lambda: self.of_the_page(page)["cancelled"] == before["cancelled"] + 30)
        page.until(
            lambda: (
                {**self.of_the_page(page), "levels": []} == {**self.of_the_server(page_http, "produce"), "levels": []}
            )
        )
        assert page.number("#centre-count") == 0
        assert "34 have waited" in page.text("#waits-text")

    def test_canvas_is_drawn_again_after_it_was_hidden(self, page: Page) -> None:
        two_frames = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done(true)))"
        for display in ("none", ""):
            page.run("document.querySelector('main').style.display = arguments[0]", display)
            assert page.run_async(two_frames)
        page.until(lambda: page.run("return document.querySelector('canvas').width") > 100)

    def test_the_ring_is_shaded_where_operations_are(
        self, page: Page, page_server: ServerProcess, page_http: httpx.Client
    ) -> None:
        page.choose("produce")
        with waiting_produces(page_server, next(TOPICS), [100.0] * 20):
            page.until(lambda: page.number("#centre-count") == 20)
            snapshot = page_http.get("/topics/__statistics/messages", params={"offset": 2**53}).json()["messages"][-1]
            counts = snapshot["value"]["purgatories"]["produce"]["wheels"][3]["counts"]
            shades = page.run(
                """
                const [counts, level] = arguments, shown = document.querySelector("#rings");
                const canvas = document.createElement("canvas");
                canvas.width = canvas.height = shown.width;
                canvas.getContext("2d", { willReadFrequently: true }).drawImage(shown, 0, 0);
                const rings = document.querySelectorAll("#levels-body tr").length, centre = canvas.width / 2;
                const hole = 0.2 * (centre - 16), width = (centre - 16 - hole) / rings;
                const style = getComputedStyle(document.documentElement).getPropertyValue("--empty");
                const empty = [1, 3, 5].map(at => parseInt(style.slice(at, at + 2), 16)).join();
                return counts.map((_, slot) => {
                  const turn = (slot + 0.3) / counts.length * 2 * Math.PI, radius = hole + (level - 0.35) * width;
                  const [x, y] = [centre + radius * Math.sin(turn), centre - radius * Math.cos(turn)];
                  return canvas.getContext("2d").getImageData(x, y, 1, 1).data.slice(0, 3).join() !== empty;
                });
                """,
                counts,
                4,
            )
            assert shades == [count > 0 for count in counts]
            assert sum(shades) == 1

    def test_moves_are_found_between_two_snapshots(self, page: Page) -> None:
        def snapshot(satisfied: int, delayed: int, **buckets: int) -> dict[str, Any]:
            counts = [[0] * 20 for _ in range(3)]
            for place, count in buckets.items():
                level, slot = place.removeprefix("at").split("_")
                counts[int(level)][int(slot)] = count
            wheels = [{"unit": 20**level, "counts": each} for level, each in enumerate(counts)]
            outcomes = {"expired": 0, "closed": 0, "cancelled": 0, "failed": 0, "satisfied": satisfied}
            return {"wheels": wheels, "timer": {"tick": 0.001}, "statistics": {**outcomes, "num_delayed": delayed}}

        before = snapshot(0, 17, at1_6=5, at1_15=4, at2_3=8)
        after = snapshot(2, 18, at1_15=2, at2_3=8, at2_7=3, at1_18=5)
        # From 10.1 to 10.13 s: the hand of the middle level comes to its bucket 6, which begins at 10.12.
        moved = page.run_async(
            """
            const [before, after, done] = arguments;
            import("/page/changes.js").then(({ changes }) => done(changes(before, after, 10.1, 10.13)));
            """,
            before,
            after,
        )
        assert moved["cascaded"] == [{"level": 1, "slot": 6, "count": 5}]
        assert moved["left"] == [{"level": 1, "slot": 15, "count": 2}]
        assert {"level": 2, "slot": 7, "count": 3} in moved["entered"]
        assert (moved["arrived"], moved["finished"]["satisfied"]) == (3, 2)


def test_the_end_of_a_long_topic_is_found(page: Page, page_http: httpx.Client) -> None:
    topic = next(TOPICS)
    for number in range(157):
        page_http.post(f"/topics/{topic}/messages", json={"value": number})
    page.watch(topic)
    page.until_watched(topic, [str(number) for number in range(156, 106, -1)])
    page.publish(topic, "new")
    page.until_watched(topic, ["new", *map(str, range(156, 107, -1))])


def test_more_topics_are_watched_than_a_browser_has_connections(page: Page, page_http: httpx.Client) -> None:
    topics = [next(TOPICS) for _ in range(9)]
    page.until(lambda: page_http.get("/statistics").json()["fetch"]["num_delayed"] <= 1)
    for topic in topics:
        page.watch(topic)
    for topic in topics:
        assert page.publish(topic, f"for {topic}").startswith("Stored")
        # Three, and the statistics': the others of six are free.
        assert page_http.get("/statistics").json()["fetch"]["num_delayed"] <= 4
    for topic in topics:
        page.until_watched(topic, [f"for {topic}"])


def test_the_page_comes_back_after_a_restart_without_loss_or_repetition(chrome: Chrome, tmp_path: Path) -> None:
    with running(tmp_path) as before:
        port = before.url.rsplit(":")[-1]
        with opened(chrome, before.url) as page:
            page.refusals = True
            assert page.element("#demo").get_attribute("disabled")
            assert "--demo" in page.text("#demo-note")
            page.watch("news")
            page.publish("news", "before")
            page.until_watched("news", ["before"])
            process = page.text("#process")
            before.stop()
            page.until(lambda: page.text("#state-text") == "reconnecting…")
            assert page.publish("news", "meanwhile") == "The server cannot be reached."
            with running(tmp_path, "--port", port) as after:
                httpx.post(f"{after.url}/topics/news/messages", json={"value": "after"})
                page.until(lambda: page.text("#state-text") == "live" and page.text("#process") != process)
                page.publish("news", "and more")
                page.until_watched("news", ["and more", "after", "before"])
                # Offline pages must not keep the server from stopping.
                page.driver.get("about:blank")


def test_the_slider_brings_ten_thousand_and_none(
    page: Page, page_server: ServerProcess, page_http: httpx.Client
) -> None:
    def pending() -> int:
        number: int = page_http.get("/statistics").json()["demo"]["num_delayed"]
        return number

    page.element("#demo").send_keys(Keys.END)
    assert page.text("#demo-output") == "10,000"
    page.until(lambda: pending() > 9_800)
    page.until(lambda: page.number("[data-counter=num_delayed]") > 9_800)
    assert page.run("return document.querySelector('#choice input:checked').value") == "demo"
    process = psutil.Process(page_server.process.pid)
    before = process.cpu_times()
    times = page.run_async(
        """
        const done = arguments[0], times = [];
        requestAnimationFrame(function frame(now) {
          times.push(now);
          if (times.length <= 150) requestAnimationFrame(frame); else done(times);
        });
        """
    )
    after = process.cpu_times()
    frames = [(later - earlier) / 1000 for earlier, later in itertools.pairwise(times)]
    show(f"the page with 10,000 operations pending, time of a frame: {spread(frames)}")
    busy = (after.user + after.system - before.user - before.system) / sum(frames)
    show(f"the server meanwhile, traffic and snapshots included: {busy:.1%} of a core")
    page.element("#demo").send_keys(Keys.HOME)
    assert page.text("#demo-output") == "0"
    page.until(lambda: pending() == 0)
    page.until(lambda: page.number("#centre-count") == 0)


def test_without_an_open_page_no_snapshot_is_made(page: Page, page_http: httpx.Client) -> None:
    def made() -> int:
        # It completes at once, so that nothing is made for it.
        answer = page_http.get("/topics/__statistics/messages", params={"offset": 2**53, "min_messages": 0, "wait": 0})
        offset: int = answer.json()["next_offset"]
        return offset

    first = made()
    page.until(lambda: made() > first)
    page.driver.get("about:blank")
    page.until(lambda: page_http.get("/statistics").json()["fetch"]["num_delayed"] == 0)
    last = made()
    page_http.get(f"/topics/{next(TOPICS)}/messages", params={"wait": 1.0})  # by the server's own clock
    assert made() == last


def test_a_hidden_tab_makes_no_snapshots_but_follows_its_topics(page: Page, page_http: httpx.Client) -> None:
    topic = next(TOPICS)
    page.watch(topic)
    page.until_watched(topic, [])
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    polls = page_http.get("/statistics").json()["fetch"]
    page_http.get(f"/topics/{next(TOPICS)}/messages", params={"wait": 1.0})
    assert page_http.get("/statistics").json()["fetch"]["satisfied"] <= polls["satisfied"] + 1
    page_http.post(f"/topics/{topic}/messages", json={"value": "for hidden pages"})
    page.driver.switch_to.window(first)
    page.until_watched(topic, ["for hidden pages"])


def test_all_of_it_can_be_done_with_the_keyboard(page: Page) -> None:
    topic = next(TOPICS)

    def press(*keys: str) -> None:
        page.driver.switch_to.active_element.send_keys(*keys)

    def tab_to(selector: str) -> None:
        for _ in range(40):
            press(Keys.TAB)
            outline = page.run(
                """
                const at = document.activeElement, seen = at.type === "radio" ? at.nextElementSibling : at;
                return getComputedStyle(seen).outlineStyle;
                """
            )
            name = page.run("return document.activeElement.tagName")
            assert outline != "none" or name == "BODY", name
            if page.run("return document.activeElement.matches(arguments[0])", selector):
                return
        raise AssertionError(f"{selector} is not reached")

    tab_to("#choice input")
    press(Keys.ARROW_RIGHT)
    page.until(lambda: "replicas" in page.text("#note"))
    tab_to("#demo")
    press(Keys.ARROW_RIGHT)
    page.until(lambda: page.number("#centre-count") == 10)
    press(Keys.HOME)
    tab_to("#publish-topic")
    press(Keys.CONTROL, "a", Keys.NULL, topic)
    tab_to("#publish-value")
    press("typed", Keys.ENTER, "text", Keys.CONTROL, Keys.ENTER, Keys.NULL)
    page.until(lambda: page.text("#publish-answer") == f"Stored in {topic}, offset 0.")
    tab_to("#watch-topic")
    press(Keys.CONTROL, "a", Keys.NULL, topic, Keys.ENTER)
    page.until_watched(topic, ["typed\ntext"])
    tab_to(".topic button")
    press(Keys.ENTER)
    assert page.texts(".topic") == []
    assert page.run("return document.activeElement.id") == "watch-topic"


@pytest.mark.parametrize("width", [320, 360, 768, 1440])
def test_no_screen_scrolls_sideways(page: Page, page_http: httpx.Client, width: int) -> None:
    topic = f"{next(TOPICS)}-{'w' * 200}"
    page_http.post(f"/topics/{topic}/messages", json={"value": "m" * 5000})
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 2, "mobile": width < 700}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    page.open(f"#watch={topic}")
    page.until(lambda: page.messages(topic))
    assert page.run("return document.documentElement.scrollWidth") <= width


def test_a_browser_with_reduced_motion_gets_none(page: Page) -> None:
    features = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    page.open()
    page.element("#demo").send_keys(*[Keys.ARROW_RIGHT] * 40)
    page.until(lambda: page.number("[data-counter=satisfied]") > 20 and page.number("[data-counter=expired]") > 5)
    dots = page.run_async(
        """
        const done = arguments[0], shown = document.querySelector("#motion"), canvas = document.createElement("canvas");
        const side = canvas.width = canvas.height = shown.width;
        const context = canvas.getContext("2d", { willReadFrequently: true });
        let frames = 0, coloured = 0;
        requestAnimationFrame(function look() {
          context.drawImage(shown, 0, 0);
          const { data } = context.getImageData(0, 0, side, side);
          for (let at = 0; at < data.length; at += 4) if (Math.abs(data[at] - data[at + 2]) > 60) coloured++;
          if (++frames < 10) requestAnimationFrame(look); else done(coloured);
        });
        """
    )
    assert dots == 0
    page.element("#demo").send_keys(Keys.HOME)
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_the_files_are_kept_by_browsers_and_limit_their_sources(page_http: httpx.Client) -> None:
    index = page_http.get("/")
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    paths = re.findall(r'(?:src|href)="(page/[^"]+)"', index.text)
    assert {Path(path).suffix for path in paths} == {".js", ".css", ".svg"}
    for path in ("/", *paths):
        response = page_http.get(path)
        assert response.status_code == 200
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        again = page_http.get(path, headers={"If-None-Match": response.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    assert page_http.get("/page/../app.py").status_code == 404
    assert page_http.get("/page/%2e%2e/app.py").status_code == 404
    assert "<script>" not in index.text
    assert "style=" not in index.text
