"""The long-poll server's page in a browser, for tests."""

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

TOPICS = (f"topic-{number}" for number in itertools.count())
"""Names that no other test uses."""


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

    def fill(self, selector: str, value: str) -> None:
        """Not by keys: a driver knows no key for some characters."""
        self.run("document.querySelector(arguments[0]).value = arguments[1]", selector, value)

    def choose(self, purgatory: str) -> None:
        self.run("document.querySelector(arguments[0]).click()", f"#choice input[value={purgatory}]")

    def watch(self, topic: str) -> None:
        self.fill("#watch-topic", topic)
        self.element("#watch button").click()

    def publish(self, topic: str, value: str, kind: str = "text") -> str:
        """Returns what the page says of it."""
        self.run("document.querySelector('#publish-answer').textContent = ''")
        self.run("document.querySelector(arguments[0]).click()", f"#publish input[value={kind}]")
        self.fill("#publish-topic", topic)
        self.fill("#publish-value", value)
        self.element("#publish button").click()
        answer: str = self.until(lambda: self.text("#publish-answer"))
        return answer

    def messages(self, topic: str) -> list[str]:
        """The messages of a topic that the page shows, the newest first."""
        return self.texts(f'[data-topic="{topic}"] li bdi')

    def until_watched(self, topic: str, messages: list[str]) -> None:
        """Return when the page shows these, and knows that there are no more."""
        self.until(lambda: self.messages(topic) == messages and "…" not in self.text(f'[data-topic="{topic}"] .note'))


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
