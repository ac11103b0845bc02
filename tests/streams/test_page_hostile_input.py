"""Hostile paths and data: the page shows them, as text, and that is all."""

import json
from functools import partial
from urllib.parse import quote

import httpx
import pytest
from selenium.common.exceptions import JavascriptException
from selenium.webdriver import Chrome

from tests.streams.pages import PATHS, Page, console
from tests.streams.processes import JSON
from tests.streams.serving import Server

MARKUP = "<img src=x onerror=window.hostile=1>"

VALUES = (
    MARKUP,
    "</script><script>window.hostile=1</script>",
    "<svg onload=window.hostile=1>",
    "javascript:window.hostile=1",
    "'\"><b>bold</b> &amp; {{7*7}} ${7*7}",
    "\u202eabc\u2066 right to left \u05d0\u05d1 \u202c",
    "line\nbreak\ttab \u2028 \ufeff \x00 zero",
    {MARKUP: [MARKUP, {"__proto__": {"polluted": True}}]},
    10**30,
    None,
)


def calm(page: Page) -> None:
    assert page.run("return window.hostile") is None
    assert page.run("return ({}).polluted") is None
    assert page.run("return document.querySelectorAll('main img, main script, main b b, iframe, object').length") == 0


def test_hostile_json_is_shown_as_text(page: Page, page_http: httpx.Client) -> None:
    path = next(PATHS)
    page_http.put(f"/v1/stream/{path}", headers=JSON)
    page.follow(path)
    for value in VALUES:
        assert page_http.post(f"/v1/stream/{path}", json=[value]).status_code == 204
    expected = [value if isinstance(value, str) else json.dumps(value, separators=(",", ":")) for value in VALUES]
    page.until(lambda: len(page.messages(path)) == len(expected))
    assert page.messages(path) == expected[::-1]
    calm(page)


PATHS_OF_OTHERS = [
    *("%2e%2e", "a%2Fb", "a?offset=1", "a#b", "a,b", "a\\b", "__proto__"),
    *(MARKUP, "\u202egnp.exe", "news\x7f", "x" * 300),
]


def test_hostile_paths_are_shown_as_text(page: Page) -> None:
    for path in PATHS_OF_OTHERS:
        assert page.create(path) == f"Created {path}."
        assert page.append(path, MARKUP).startswith(f"Appended to {path}, which now has ")
        page.follow(path)
    for comes_back in (False, True):
        if comes_back:  # they are in the page's address now
            page.open(page.run("return location.hash"))
        for path in PATHS_OF_OTHERS:
            page.until_followed(path, [MARKUP])
        assert page.texts(".stream h3 bdi") == PATHS_OF_OTHERS
        calm(page)
    page.fill("#list-prefix", MARKUP)
    page.run("document.querySelector('#list-prefix').dispatchEvent(new Event('input'))")
    page.until(lambda: page.texts("#list-body bdi") == [MARKUP])
    calm(page)


@pytest.mark.parametrize("path", ["..", "a/./b", "a//b", "__ds/subscriptions", "x" * 2000])
def test_bad_paths_are_refused_with_a_message(page: Page, path: str) -> None:
    page.refusals = True
    assert page.create(path).startswith("Refused: ")
    assert page.append(path, "data").startswith("Refused: ")
    page.follow(path)
    page.until(lambda: page.texts(".stream .error"))
    page.open(page.run("return location.hash"))
    page.until(lambda: page.texts(".stream .error"))
    assert page.texts(".stream .error")[0].startswith("Refused: ")
    calm(page)


def test_halves_of_characters_are_refused(page: Page) -> None:
    for form in ("create", "append", "follow"):
        page.run(f"document.querySelector('#{form}-path').value = 'a\\ud800'")
        page.run(f"document.querySelector('#{form} button').click()")
    for form in ("create", "append"):
        page.until(partial(page.text, f"#{form}-answer"))
        assert page.text(f"#{form}-answer") == "Refused: a path must not have halves of characters"
    page.until(lambda: page.texts(".stream .error"))
    calm(page)


def test_hostile_fragments_of_the_address_do_no_harm(page: Page) -> None:
    page.refusals = True
    for fragment in ("#follow=%zz", f"#follow={quote(MARKUP)},%E0%A4%A", "#<script>"):
        page.open(fragment)
        calm(page)


def test_script_in_a_stream_of_html_does_not_run(chrome: Chrome, page_server: Server, page_http: httpx.Client) -> None:
    """With the origin of the server, it could delete each stream."""
    path = f"/v1/stream/{next(PATHS)}"
    markup = "<p>shown</p><script>document.title = 'it runs'</script>"
    page_http.put(path, headers={"Content-Type": "text/html"}, content=markup)
    chrome.get(f"{page_server.url}{path}")
    assert chrome.find_element("css selector", "p").text == "shown"
    assert chrome.title == ""
    assert any("Blocked script execution" in str(line["message"]) for line in console(chrome))


def test_nothing_becomes_markup_even_if_a_script_tried(page: Page) -> None:
    with pytest.raises(JavascriptException, match="TrustedHTML"):
        page.run("document.body.innerHTML = arguments[0]", MARKUP)
    calm(page)
    assert console(page.driver)  # it has said so there
