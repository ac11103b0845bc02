"""The server-sent events on a real server, with an HTTP client and with a real browser."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from selenium.webdriver.common.by import By

from tests.asgi.processes import Server, serving
from tests.support.browser import browser


@pytest.fixture
def server() -> Iterator[Server]:
    with serving("purgatory.uvicorn", "--port", "0", "examples.server_sent_events:app") as server:
        yield server


def test_stream_goes_on_after_the_last_event_and_ends_at_shutdown(server: Server) -> None:
    for note in ("one", "two"):
        httpx.post(f"{server.url}/notes", content=note)
    for last, first in (("1", "2"), ("7", "1"), ("x", "1")):  # the last two are not known
        with httpx.stream("GET", f"{server.url}/events", headers={"Last-Event-ID": last}) as stream:
            assert f"id: {first}" in next(stream.iter_text())
    with httpx.stream("GET", f"{server.url}/events", headers={"Last-Event-ID": "2"}) as stream:
        httpx.post(f"{server.url}/notes", content="three")
        text = stream.iter_text()
        assert "data:three" in next(text)
        server.process.terminate()
        assert "data" not in "".join(text)


def test_page_shows_what_comes(server: Server, tmp_path: Path) -> None:
    httpx.post(f"{server.url}/notes", content="from elsewhere")
    with browser(tmp_path) as chrome:
        chrome.get(server.url)
        chrome.find_element(By.NAME, "note").send_keys("from here")
        chrome.find_element(By.TAG_NAME, "button").click()
        notes: list[str] = []
        while len(notes) < 2:
            notes = [item.text for item in chrome.find_elements(By.TAG_NAME, "li")]
        assert notes == ["from elsewhere", "from here"]
