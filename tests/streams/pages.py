"""The page in a browser, for tests."""

import base64
import io
import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from PIL import Image
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from purgatory.streams.engine.live import Live
from tests.streams.serving import Server

PATHS = (f"stream-{number}" for number in itertools.count())
"""Paths that no other test uses."""


class Page:
    """One or several tabs with the page."""

    def __init__(self, driver: Chrome, url: str) -> None:
        self.driver = driver
        self.url = url
        self.refusals = False
        """Whether the server is to refuse something, or to be away, which a browser writes to its console."""
        self.open()

    def open(self, fragment: str = "") -> None:
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}/{fragment}")
        self.until(lambda: self.text("#state-text") == "live")

    def until(self, condition: Callable[[], object]) -> Any:
        """Return what it returns, when that is true."""
        return WebDriverWait(self.driver, 60, 0.02).until(lambda _: condition())

    def resize(self, width: int, height: int, scale: float = 1) -> None:
        """As a screen of that size shows it, until the end of the test."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 700}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def element(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def run_async(self, script: str, *arguments: object) -> Any:
        """The value that the script passes to its last argument."""
        return self.driver.execute_async_script(script, *arguments)

    def text(self, selector: str) -> str:
        text: str = self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector)
        return text

    def texts(self, selector: str) -> list[str]:
        texts: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector
        )
        return texts

    def number(self, selector: str) -> int:
        return int(re.sub(r"\D", "", self.text(selector)) or -1)

    def picture(self, canvas: str) -> Image.Image:
        url: str = self.run("return document.querySelector(arguments[0]).toDataURL()", canvas)
        return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB")

    def fill(self, selector: str, value: str) -> None:
        """Not by keys: a driver knows no key for some characters."""
        self.run("document.querySelector(arguments[0]).value = arguments[1]", selector, value)

    def choose(self, purgatory: str) -> None:
        self.click(f"#choice input[value={purgatory}]")

    def choose_worker(self, name: str) -> None:
        """Show one worker; "all workers" is all of them."""
        Select(self.element("#worker")).select_by_visible_text(name)

    def follow(self, path: str) -> None:
        self.fill("#follow-path", path)
        self.click("#follow button")

    def create(self, path: str, kind: str = "text/plain") -> str:
        """Returns what the page says of it."""
        self.fill("#create-path", path)
        self.fill("#create-type", kind)
        return self.submitted("create")

    def append(self, path: str, data: str, *, close: bool = False) -> str:
        """Returns what the page says of it."""
        self.fill("#append-path", path)
        self.fill("#append-value", data)
        self.run("document.querySelector('#append-close').checked = arguments[0]", close)
        return self.submitted("append")

    def submitted(self, form: str) -> str:
        self.run("document.getElementById(arguments[0]).textContent = ''", f"{form}-answer")
        self.click(f"#{form} button")
        answer: str = self.until(lambda: self.text(f"#{form}-answer"))
        return answer

    def click(self, selector: str) -> None:
        self.run("document.querySelector(arguments[0]).click()", selector)

    def listed(self) -> list[list[str]]:
        """The rows of the list of streams: path, content type, amount, state."""
        rows: list[list[str]] = self.run(
            "return [...document.querySelectorAll('#list-body tr')]"
            ".map(row => [...row.cells].slice(0, 4).map(cell => cell.textContent))"
        )
        return rows

    def of_card(self, path: str, selector: str) -> list[str]:
        """The texts of such elements in the card of a stream that is followed. The path may have any characters."""
        texts: list[str] = self.run(
            "const card = [...document.querySelectorAll('.stream')].find(each => each.dataset.stream === arguments[0]);"
            "return [...(card?.querySelectorAll(arguments[1]) ?? [])].map(each => each.textContent)",
            path,
            selector,
        )
        return texts

    def messages(self, path: str) -> list[str]:
        """The messages of a stream that the page shows, the newest first."""
        return self.of_card(path, "li bdi")

    def until_followed(self, path: str, messages: list[str]) -> None:
        """Return when the page shows these, and knows that there are no more."""
        self.until(lambda: self.messages(path) == messages and self.of_card(path, ".bar ~ .note") not in (["…"], []))


@contextmanager
def opened(driver: Chrome, url: str) -> Iterator[Page]:
    """The page, which has written nothing to the browser's console in the end."""
    console(driver)
    page = Page(driver, url)
    yield page
    log = console(driver)
    first, *others = driver.window_handles
    for handle in others:
        driver.switch_to.window(handle)
        driver.close()
    driver.switch_to.window(first)
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.get("about:blank")
    said = [entry for entry in log if not (page.refusals and entry["source"] == "network")]
    assert not said, said


def console(driver: Any) -> list[dict[str, Any]]:
    """The lines of the browser's console since the last call."""
    log: list[dict[str, Any]] = driver.get_log("browser")
    return log


def live(server: Server) -> Live:
    return server.application._page.live


def is_idle(live: Live) -> bool:
    """Whether no snapshot is on its way, or will be made."""
    return live._next is None and live._sharing is None
