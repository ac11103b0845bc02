"""The page, in a real browser on a real server."""

import math
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import ImageChops, ImageColor
from selenium.webdriver import Chrome, Keys

import purgatory
from tests.streams.node import installed
from tests.streams.pages import PATHS, Page, is_idle, live, opened
from tests.streams.processes import JSON, TEXT, running
from tests.streams.serving import Server, serving
from tests.support.servers import PostgresServer, reserved_port

SOURCE = "https://github.com/asyncio-purgatory/asyncio-purgatory/blob/main"
COUNTERS = (
    *("num_delayed", "satisfied", "missed", "expired", "closed", "cancelled"),
    *("completed_at_once", "failed", "purged"),
)


@contextmanager
def waiting_reads(url: str, path: str, count: int) -> Iterator[None]:
    """Long polls at the end of a stream, each on a connection of its own."""
    parsed = httpx.URL(url)
    with ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection((parsed.host, parsed.port or 80)))
            request = f"GET /v1/stream/{path}?offset=now&live=long-poll HTTP/1.1\r\nHost: {parsed.host}\r\n\r\n"
            connection.sendall(request.encode())
        yield


def create(http: httpx.Client, headers: dict[str, str] = TEXT) -> str:
    path = next(PATHS)
    assert http.put(f"/v1/stream/{path}", headers=headers).status_code == 201
    return path


def statistics(http: httpx.Client) -> dict[str, Any]:
    (worker,) = http.get("/v1/statistics").json()["workers"]
    found: dict[str, Any] = worker["purgatories"]["read"]
    return found


def delayed(http: httpx.Client) -> int:
    count: int = statistics(http)["statistics"]["num_delayed"]
    return count


def test_a_visitor_of_the_demo_sees_wheels_that_are_not_empty(chrome: Chrome, tmp_path: Path) -> None:
    with serving(data=str(tmp_path), demo=True) as server, opened(chrome, server.url) as page:
        assert page.run("return document.querySelector('#choice input:checked').value") == "demo"
        assert 250 <= page.number("#centre-count") <= 300
        page.until(lambda: page.number("[data-counter=expired]") > 0)
        assert re.fullmatch("by checks( and [0-9,]+ purges?)?", page.text("[data-counter=purged] + small"))
        assert page.texts(".side .legend li") == ["by condition", "by deadline", "cancelled, closed or failed"]
        page.until(lambda: re.fullmatch("operations per bar: up to [0-9,]+", page.text("#histogram-most")))
        legend = " ".join(page.texts(".wheel .legend li"))
        assert "the hand of a ring, with the time just passed in gray" in legend
        assert "the time that one bucket of the ring spans" in legend


def test_the_page_names_its_source_and_has_the_streams_above_the_fold_of_a_laptop(page: Page) -> None:
    page.until(lambda: page.text("#version") == purgatory.__version__)
    links = page.run("return [...document.querySelectorAll('footer a')].map(each => [each.textContent, each.href])")
    assert [link for link in links if "github" in link[1]] == [
        ["asyncio-purgatory", f"{SOURCE}/README.md"],
        ["Documentation of this server", f"{SOURCE}/purgatory/streams/README.md"],
    ]
    page.resize(1360, 900)
    page.open()
    top = page.run("return document.querySelector('#streams-title').getBoundingClientRect().bottom")
    assert top < 870


def test_no_violation_of_accessibility_is_found(page: Page, page_http: httpx.Client) -> None:
    path = create(page_http)
    page_http.post(f"/v1/stream/{path}", headers=TEXT, content="a message")
    page.open(f"#follow={path}")
    page.until_followed(path, ["a message"])
    page.run((installed() / "node_modules" / "axe-core" / "axe.min.js").read_text())
    found = page.run_async("const done = arguments[0]; axe.run().then(({ violations }) => done(violations))")
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == []


def test_stream_is_followed_while_the_tab_is_hidden(page: Page, page_server: Server, page_http: httpx.Client) -> None:
    path = next(PATHS)
    assert page.create(path) == f"Created {path}."
    assert page.create(path) == f"{path} already exists."
    page.follow(path)
    page.until_followed(path, [])
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    page.until(lambda: is_idle(live(page_server)))  # no snapshot is made for a hidden tab
    page_http.post(f"/v1/stream/{path}", headers=TEXT, content="for hidden pages")
    page.open()
    assert page.append(path, "Grüße") == f"Appended to {path}, which now has 23 bytes."
    page.until(lambda: [path, "text/plain", "23 bytes", "open"] in page.listed())
    assert page.append(path, "", close=True) == f"Closed {path}, which now has 23 bytes."
    page.driver.switch_to.window(first)
    page.until_followed(path, ["Grüße", "for hidden pages"])
    page.until(lambda: page.of_card(path, ".bar ~ .note") == ["closed"])
    page.until(lambda: [path, "text/plain", "23 bytes", "closed"] in page.listed())


def test_list_is_brought_up_to_date_and_filtered(page: Page, page_http: httpx.Client) -> None:
    prefix = f"{create(page_http)}/"
    page.driver.execute_script("document.querySelector('#list-prefix').focus()")
    page.driver.switch_to.active_element.send_keys(prefix)
    page.until(lambda: page.text("#list-note") == "No path begins with this text.")
    for number in range(25):
        page_http.put(f"/v1/stream/{prefix}{number:02}", headers=JSON)
    expected = [[f"{prefix}{number:02}", "application/json", "0 messages", "open"] for number in range(25)]
    page.until(lambda: page.listed() == expected[:20])
    page.until(lambda: page.element("#list-more").is_displayed())
    page.click("#list-more")
    page.until(lambda: page.listed() == expected)
    page.until(lambda: not page.element("#list-more").is_displayed())
    # A row keeps the focus when others come before it.
    page.run("document.querySelectorAll('#list-body button')[3].focus()")
    page_http.put(f"/v1/stream/{prefix}0", headers=JSON)
    page_http.delete(f"/v1/stream/{prefix}24")
    page.until(lambda: [row[0] for row in page.listed()] == [f"{prefix}0", *(row[0] for row in expected[:24])])
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    page.until_followed(f"{prefix}03", [])


def of_the_page(page: Page) -> dict[str, Any]:
    levels = [int(text.replace(",", "")) for text in page.texts("#levels-body td:last-child")]
    return {"levels": levels, **{name: page.number(f"[data-counter={name}]") for name in COUNTERS}}


def of_the_server(http: httpx.Client) -> dict[str, Any]:
    """The same as the server says it."""
    found = statistics(http)
    levels = [sum(wheel["counts"]) for wheel in found["wheels"]]
    while len(levels) > 4 and not levels[-1]:  # rings that nothing has ever waited in are not drawn
        levels.pop()
    return {"levels": levels, **{name: found["statistics"][name] for name in COUNTERS}}


def test_page_shows_counts_of_server(page: Page, page_server: Server, page_http: httpx.Client) -> None:
    page.until(lambda: delayed(page_http) == 0)
    page.choose("read")
    before = of_the_server(page_http)
    some, others = create(page_http), create(page_http)
    with waiting_reads(page_server.url, some, 4), waiting_reads(page_server.url, others, 30):
        page.until(lambda: page.number("#centre-count") == 34)
        page.until(lambda: of_the_page(page) == of_the_server(page_http))
        # Neither the page's own polls nor those of this test are among them.
        assert of_the_page(page)["levels"][4] == 34
        page_http.post(f"/v1/stream/{some}", headers=TEXT, content="x")
        page.until(lambda: page.number("#centre-count") == 30)
    page.until(lambda: of_the_page(page)["cancelled"] == before["cancelled"] + 30)
    page.until(lambda: page.number("#centre-count") == 0)
    assert of_the_page(page)["satisfied"] == before["satisfied"] + 4
    assert "have waited" in page.text("#waits-text")


def test_canvas_is_drawn_again_after_it_was_hidden(page: Page) -> None:
    two_frames = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done(true)))"
    for display in ("none", ""):
        page.run("document.querySelector('main').style.display = arguments[0]", display)
        assert page.run_async(two_frames)
    page.until(lambda: page.run("return document.querySelector('canvas').width") > 100)


def test_ring_is_shaded_where_operations_are(page: Page, page_server: Server, page_http: httpx.Client) -> None:
    page.resize(1440, 1600)  # no label is in the way
    page.open()
    page.choose("read")
    with waiting_reads(page_server.url, create(page_http), 20):
        page.until(lambda: page.number("#centre-count") == 20)
        counts = statistics(page_http)["wheels"][4]["counts"]
        rings = page.picture("#rings")
    centre, count = rings.width / 2, len(page.texts("#levels-body tr"))
    hole = 0.2 * (centre - 16)
    radius = hole + 4.65 * (centre - 16 - hole) / count  # in the fifth ring
    turns = [(slot + 0.3) / len(counts) * 2 * math.pi for slot in range(len(counts))]
    places = [(int(centre + radius * math.sin(turn)), int(centre - radius * math.cos(turn))) for turn in turns]
    empty = page.run("return getComputedStyle(document.documentElement).getPropertyValue('--empty')")
    assert [rings.getpixel(place) != ImageColor.getrgb(empty.strip()) for place in places] == [n > 0 for n in counts]


def test_moves_are_found_between_two_snapshots(page: Page) -> None:
    def snapshot(satisfied: int, delayed: int, buckets: dict[tuple[int, int], int]) -> dict[str, Any]:
        wheels = [
            {"unit": 20**level, "counts": [buckets.get((level, slot), 0) for slot in range(20)]} for level in range(3)
        ]
        outcomes = {"expired": 0, "closed": 0, "cancelled": 0, "failed": 0, "satisfied": satisfied}
        return {"wheels": wheels, "timer": {"tick": 0.001}, "statistics": {**outcomes, "num_delayed": delayed}}

    # From 10.1 to 10.13 s: the hand of the middle level comes to its bucket 6, which begins at 10.12.
    moved = page.run_async(
        """
        const [before, after, done] = arguments;
        import("/page/changes.js").then(({ changes }) => done(changes(before, after, 10.1, 10.13)));
        """,
        snapshot(0, 17, {(1, 6): 5, (1, 15): 4, (2, 3): 8}),
        snapshot(2, 18, {(1, 15): 2, (2, 3): 8, (2, 7): 3, (1, 18): 5}),
    )
    assert moved["cascaded"] == [{"level": 1, "slot": 6, "count": 5}]
    assert moved["left"] == [{"level": 1, "slot": 15, "count": 2}]
    assert {"level": 2, "slot": 7, "count": 3} in moved["entered"]
    assert (moved["arrived"], moved["finished"]["satisfied"]) == (3, 2)


def test_end_of_a_stream_is_shown(page: Page, page_http: httpx.Client) -> None:
    path = create(page_http, JSON)
    page_http.post(f"/v1/stream/{path}", headers=JSON, json=list(range(157)))
    page.follow(path)
    page.until_followed(path, [str(number) for number in range(156, 106, -1)])
    assert page.append(path, '["new", {"a": [1, null]}]') == f"Appended to {path}, which now has 159 messages."
    page.until_followed(path, ['{"a":[1,null]}', "new", *map(str, range(156, 108, -1))])
    assert page.of_card(path, "li > span:first-child") == [str(number) for number in range(158, 108, -1)]
    for kind, data, shown, positions, note in (
        ("text/plain", b"a" * 10_000 + b"b" * 1000, "a" * 2000 + "…", ["6,904"], "the first 2,000 of 4,096 characters"),
        ("application/octet-stream", b"\xff\x00\x01", "ff 00 01", ["0"], "3 of 3 bytes, not text"),
    ):
        path = create(page_http, {"Content-Type": kind})
        page_http.post(f"/v1/stream/{path}", headers={"Content-Type": kind}, content=data)
        page.follow(path)
        page.until_followed(path, [shown])
        assert page.of_card(path, "li .note") == [note]
        assert page.of_card(path, "li > span:first-child") == positions


def test_messages_that_are_not_shown_are_not_made(page: Page, page_http: httpx.Client) -> None:
    """An append of a million messages is two MB."""
    path = create(page_http, JSON)
    page.follow(path)
    page.until(lambda: "no messages yet" in page.of_card(path, ".note"))
    page.run(
        "const make = document.createElement; window.made = 0;"
        "document.createElement = function (...a) { window.made++; return make.apply(this, a); }"
    )
    page_http.post(f"/v1/stream/{path}", headers=JSON, json=list(range(10_000)))
    page.until_followed(path, [str(number) for number in range(9_999, 9_949, -1)])
    assert page.run("return window.made") < 1000


def test_more_streams_are_followed_than_a_browser_has_connections(page: Page, page_http: httpx.Client) -> None:
    page.until(lambda: delayed(page_http) == 0)
    paths = [create(page_http) for _ in range(9)]
    for path in paths:
        page.follow(path)
    for path in paths:
        assert page.append(path, f"for {path}").startswith("Appended")
        # Three: the other connections of six are free.
        assert delayed(page_http) <= 3
    for path in paths:
        page.until_followed(path, [f"for {path}"])


def test_page_comes_back_after_a_restart_without_loss_or_repetition(chrome: Chrome, tmp_path: Path) -> None:
    port = str(reserved_port())
    with ExitStack() as stack:
        with running(tmp_path, "--port", port) as server:
            page = stack.enter_context(opened(chrome, server.url))
            page.refusals = True
            assert page.element("#demo").get_attribute("disabled")
            assert "--demo" in page.text("#demo-note")
            page.create("news")
            page.follow("news")
            page.append("news", "before")
            page.until_followed("news", ["before"])
            process = page.text("#process")
        page.until(lambda: page.text("#state-text") == "reconnecting…")
        assert page.append("news", "meanwhile") == "The server cannot be reached."
        with running(tmp_path, "--port", port) as server:
            httpx.post(f"{server.url}/v1/stream/news", headers=TEXT, content="after").raise_for_status()
            page.until(lambda: page.text("#state-text") == "live" and page.text("#process") != process)
            page.until_followed("news", ["after", "before"])
            page.append("news", "and more")
            page.until_followed("news", ["and more", "after", "before"])
            # Offline pages must not keep the server from stopping.
            page.driver.get("about:blank")


def test_all_workers_are_shown_in_one_page(chrome: Chrome, postgres: PostgresServer) -> None:
    with (
        running(None, "--database", postgres.create_database(), "--workers", "2") as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
        opened(chrome, server.url) as page,
    ):

        def waiting() -> list[int]:
            return [int(text) for text in page.texts("#workers-body td:nth-child(2)")]

        def are_waiting(total: int) -> bool:
            return sum(waiting()) == total

        def is_shown(name: str, number: int) -> bool:
            return page.number("#centre-count") == number and page.text("#process") == f"{name}."

        http.put("/v1/stream/a", headers=TEXT)
        page.until(lambda: page.element("#workers").is_displayed() and waiting() == [0, 0])
        assert page.text("#process") == "2 workers."
        with ExitStack() as stack:
            # Each connection is one worker's: they come until both have some.
            total = 0
            while not all(waiting()):
                stack.enter_context(waiting_reads(server.url, "a", 5))
                total += 5
                page.until(partial(are_waiting, total))
            page.until(lambda: page.number("#centre-count") == total)
            names = page.texts("#workers-body th")
            for name, number in zip(names, waiting(), strict=True):
                page.choose_worker(name)
                page.until(partial(is_shown, name, number))
            page.choose_worker("all workers")
            http.post("/v1/stream/a", headers=TEXT, content="x")
            page.until(lambda: waiting() == [0, 0])
            page.until(lambda: page.number("[data-counter=satisfied]") == total)


def test_sum_of_workers_puts_the_same_deadline_into_one_bucket(page: Page) -> None:
    def worker(process: int, clock: float, time: float, slot: int, **purgatories: int) -> dict[str, Any]:
        counts = [[int(place == slot) for place in range(20)], [3 * int(place == 1) for place in range(20)]]
        purgatory = {
            "statistics": {"name": "read", "num_delayed": 4, "satisfied": process, "peak_delayed": 9},
            "timer": {"tick": 1.0, "wake_ups": 1},
            "wheels": [{"unit": 20**level, "hand": 0, "counts": each} for level, each in enumerate(counts)],
            "waits": {"satisfied": [1, 2], "expired": [0, process]},
        }
        other = dict.fromkeys(purgatories, purgatory)
        known = {"process": process, "clock": clock, "time": time, "requests": {"parked": 2, "not_parked": process}}
        return {**known, "purgatories": {"read": purgatory, **other}}

    # What is at 5 on the clock of the first machine is at 2 on that of the other, which was started 3 s later.
    summed = page.run_async(
        """
        const [workers, done] = arguments;
        import("/page/workers.js").then(({ sum }) => done(sum(workers)));
        """,
        [worker(1, 1000.0, 4.0, 5), worker(2, 1000.5, 1.5, 2, demo=1)],
    )
    assert summed["time"] == 4.5
    assert summed["requests"] == {"parked": 4, "not_parked": 3}
    assert set(summed["purgatories"]) == {"read", "demo"}
    read = summed["purgatories"]["read"]
    assert [wheel["counts"].index(max(wheel["counts"])) for wheel in read["wheels"]] == [5, 1]
    assert [max(wheel["counts"]) for wheel in read["wheels"]] == [2, 6]
    assert read["statistics"] == {"num_delayed": 8, "satisfied": 3}
    assert read["timer"] == {"tick": 1.0, "wake_ups": 2}
    assert read["waits"] == {"satisfied": [2, 4], "expired": [0, 3]}


def test_keyboard_does_everything(page: Page) -> None:
    path = next(PATHS)

    def press(*keys: str) -> None:
        page.driver.switch_to.active_element.send_keys(*keys)

    def use(selector: str, *keys: str) -> None:
        """Go there by the tabulator, and press these keys."""
        for _ in range(80):
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
                press(*keys)
                return
        raise AssertionError(f"{selector} is not reached")

    use("#choice input", Keys.ARROW_RIGHT)
    page.until(lambda: "Made-up" in page.text("#note"))
    use("#demo", Keys.END)
    assert page.text("#demo-output") == "10,000"
    page.until(lambda: page.number("#centre-count") > 9_800)
    press(Keys.HOME)
    page.until(lambda: page.number("#centre-count") == 0)
    use("#create-path", Keys.CONTROL, "a", Keys.NULL, path)
    use("#create-type", "application/j", Keys.ENTER)
    use("#create button", Keys.ENTER)
    page.until(lambda: page.text("#create-answer") == f"Created {path}.")
    use("#append-path", Keys.CONTROL, "a", Keys.NULL, path)
    use("#append-value", '"typed', Keys.ENTER, 'text"', Keys.CONTROL, Keys.ENTER, Keys.NULL)
    page.until(lambda: page.text("#append-answer").startswith("Refused: the data must be JSON"))
    press(Keys.CONTROL, "a", Keys.NULL, '"typed"', Keys.CONTROL, Keys.ENTER, Keys.NULL)
    page.until(lambda: page.text("#append-answer") == f"Appended to {path}, which now has 1 message.")
    use("#append-close", Keys.SPACE)
    use("#append button", Keys.ENTER)
    page.until(lambda: page.text("#append-answer") == f"Closed {path}, which now has 1 message.")
    use("#follow-path", Keys.CONTROL, "a", Keys.NULL, path, Keys.ENTER)
    page.until_followed(path, ["typed"])
    use("#list-prefix", path)
    page.until(lambda: page.listed() == [[path, "application/json", "1 message", "closed"]])
    use("#list-body button", Keys.ENTER)
    page.until(lambda: page.text("#follow-answer") == "You already follow this stream.")
    use(".stream button", Keys.ENTER)
    assert page.texts(".stream") == []
    assert page.run("return document.activeElement.id") == "follow-path"


@pytest.mark.parametrize("width", [320, 360, 768, 1440])
def test_no_screen_scrolls_sideways(page: Page, page_http: httpx.Client, width: int) -> None:
    path = f"0-{next(PATHS)}-{'w' * 200}"  # the first ones in the list
    page_http.put(f"/v1/stream/{path}", headers=TEXT, content="m" * 5000)
    page.resize(width, 800, scale=2)
    page.open(f"#follow={path}")
    page.until(lambda: page.messages(path) and any(row[0] == path for row in page.listed()))
    assert page.run("return document.documentElement.scrollWidth") <= width


def test_browser_with_reduced_motion_gets_none(page: Page) -> None:
    features = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    page.open()
    page.element("#demo").send_keys(*[Keys.ARROW_RIGHT] * 40)
    page.until(lambda: page.number("[data-counter=satisfied]") > 20 and page.number("[data-counter=expired]") > 5)
    for _ in range(10):
        red, _, blue = page.picture("#motion").split()
        assert not any(ImageChops.difference(red, blue).histogram()[61:]), "a dot is coloured"
    page.element("#demo").send_keys(Keys.HOME)
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_files_are_kept_by_browsers_and_limit_their_sources(page_http: httpx.Client) -> None:
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
