"""The answers of a language model, with readers that leave and come back: official clients, a real browser."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tests.asgi.processes import Server, serving
from tests.streams.node import installed
from tests.streams.pages import console
from tests.support.browser import browser
from tests.support.paths import ROOT
from tests.support.servers import program

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

ANSWER = "You have asked: Why? I am a made-up model, so I count to a hundred. " + " ".join(map(str, range(1, 101)))


@contextmanager
def running(data: Path, command: str, app: str = "examples.llm_tokens.app:app") -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLM_TOKENS_DATA", str(data))
        with serving(command, "--port", "0", app) as server:
            yield server


def ask(server: Server) -> str:
    """The URL of the stream of a new answer."""
    asked = httpx.post(f"{server.url}/chats", json={"prompt": "Why?"}, timeout=60)
    assert asked.status_code == 201
    return f"{server.url}{asked.json()['stream']}"


@pytest.mark.parametrize("command", ["purgatory.uvicorn", "uvicorn"])
def test_reader_goes_on_where_it_was_killed(command: str, tmp_path: Path) -> None:
    with running(tmp_path / "data", command) as server:
        url = ask(server)
        reading = [sys.executable, "-m", "examples.llm_tokens.reader", url, str(tmp_path / "offset")]
        text = ""
        for last in ("count ", "20 ", "\n"):
            with subprocess.Popen(reading, cwd=ROOT, stdout=subprocess.PIPE, text=True) as reader:
                assert reader.stdout is not None
                while not text.endswith(last):
                    letter = reader.stdout.read(1)
                    assert letter, "the reader has ended"
                    text += letter
                reader.kill()
                text += reader.stdout.read()
    words = text.split()
    # A reader that is killed between a token and its offset prints the token once more.
    assert [word for word, before in zip(words, ["", *words[:-1]], strict=True) if word != before] == ANSWER.split()


def test_program_is_short() -> None:
    assert len((ROOT / "examples" / "llm_tokens" / "app.py").read_text().splitlines()) <= 60


@pytest.fixture
def chrome(tmp_path: Path) -> "Iterator[Chrome]":
    with browser(tmp_path / "profile") as driver:
        yield driver


def test_page_goes_on_after_a_reload_by_the_official_client(
    chrome: "Chrome", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = installed()
    client = tmp_path / "client.js"
    module = "node_modules/@durable-streams/client/dist/index.js"
    options = ("--format", "esm", "--platform", "browser", "--file", str(client))
    bundle = [program("npx", "npm"), "rolldown", module, *options]
    subprocess.run(bundle, cwd=folder, check=True, capture_output=True, timeout=100)
    monkeypatch.setenv("CLIENT", str(client))

    def answer() -> str:
        return chrome.find_element(By.ID, "answer").text

    def offsets() -> list[str]:
        """The offsets from which the page has read, which are forgotten when it is left."""
        requests = chrome.execute_script("return performance.getEntriesByType('resource').map(each => each.name)")
        return re.findall(r"[?&]offset=([^&]*)", " ".join(requests))

    def until(pattern: str) -> str:
        WebDriverWait(chrome, 60, 0.02).until(lambda _: re.search(pattern, answer()))
        return answer()

    with running(tmp_path / "data", "purgatory.uvicorn", app="tests.examples.llm_tokens_offline:app") as server:
        chrome.get(server.url)
        chrome.find_element(By.NAME, "prompt").send_keys("Why?\n")
        until(r" 10 11 12")
        assert offsets()[0] == "-1"
        chrome.refresh()
        before = answer()
        assert before.startswith("You have asked: Why?")
        until(r" 20 21")
        assert offsets()
        assert "-1" not in offsets(), "it is not read from the beginning again"
        chrome.get("about:blank")  # the answer goes on meanwhile
        chrome.get(server.url)
        assert until(r" 100$") == ANSWER
        assert offsets()
        assert "-1" not in offsets()
        assert [entry for entry in console(chrome) if "favicon" not in entry["message"]] == []
