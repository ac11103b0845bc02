"""Hostile topics and values: the page shows them, as text, and that is all."""

import json

import httpx
import pytest
from selenium.common.exceptions import JavascriptException

from tests.server.pages import TOPICS, Page, console

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


def test_values(page: Page, page_http: httpx.Client) -> None:
    topic = next(TOPICS)
    page.watch(topic)
    for value in VALUES:
        response = page_http.post(f"/topics/{topic}/messages", json={"value": value})
        assert response.status_code == 201
    expected = [value if isinstance(value, str) else json.dumps(value, separators=(",", ":")) for value in VALUES]
    page.until(lambda: len(page.messages(topic)) == len(expected))
    assert page.messages(topic) == expected[::-1]
    calm(page)


def test_long_values_are_cut_and_say_so(page: Page, page_http: httpx.Client) -> None:
    topic = next(TOPICS)
    page.watch(topic)
    for value in ("<" * 1_000_000, list(range(100_000))):
        assert page_http.post(f"/topics/{topic}/messages", json={"value": value}).status_code == 201
    newer, older = page.until(lambda: len(shown := page.messages(topic)) == 2 and shown)
    assert older == "<" * 2000 + "…"
    assert newer.startswith("[0,1,2,")
    assert len(newer) == 2001
    assert "the first 2,000 of 1,000,000 characters" in page.texts(f'[data-topic="{topic}"] li .note')
    calm(page)


NAMES = (
    *(MARKUP, '"><script>window.hostile=1</script>', "..", ".", "a/b", "../../demo", "%2e%2e", "\u202egnp.exe"),
    *("ünï", "x" * 300, "a?offset=1", "a#b", "a\\b", "a,b", "news\x7f"),
)


def test_names(page: Page) -> None:
    page.refusals = True
    for topic in NAMES:
        refusal = page.publish(topic, "value")
        assert refusal.startswith("Refused: a topic " if set(topic) == {"."} else "Refused: ")
        page.watch(topic)
    for comes_back in (False, True):
        if comes_back:  # they are in the page's address now
            page.open(page.run("return location.hash"))
        page.until(lambda: len(page.texts(".topic .error")) == len(NAMES))
        assert all(error.startswith("Refused: ") for error in page.texts(".topic .error"))
        assert page.texts(".topic h3 bdi") == list(NAMES)
        calm(page)


def test_addresses(page: Page) -> None:
    page.refusals = True
    for fragment in (
        "#watch=%zz",
        "#watch=%3Cimg%20src%3Dx%20onerror%3Dwindow.hostile%3D1%3E,%E0%A4%A",
        "#<script>",
    ):
        page.open(fragment)
        calm(page)


def test_the_servers_own_topics_are_not_written(page: Page) -> None:
    page.refusals = True
    assert "server's own" in page.publish("__statistics", "7")


def test_text_that_is_not_json_is_not_sent(page: Page) -> None:
    for text in ("", "{", "undefined", '1}, "more": {"a": 1', "NaN"):
        assert page.publish("news", text, "json").startswith("This is not JSON")


def test_nothing_becomes_markup_even_if_a_script_tried(page: Page) -> None:
    with pytest.raises(JavascriptException, match="TrustedHTML"):
        page.run("document.body.innerHTML = arguments[0]", MARKUP)
    calm(page)
    assert console(page.driver)  # it has said so there
