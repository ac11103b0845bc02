"""A real browser: Debian's Chromium, without a window."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

from tests.support.servers import program

FLAGS = [
    "--headless=new",
    "--no-sandbox",  # as root there is none
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def browser(profile: Path, *flags: str) -> Iterator[Chrome]:
    """One, with a new profile in the directory `profile`, for as long as the context lasts. Without one, skip."""
    options = ChromeOptions()
    options.binary_location = program("chromium", "chromium")
    for flag in (*FLAGS, f"--user-data-dir={profile}", *flags):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(program("chromedriver", "chromium-driver")))
    try:
        yield driver
    finally:
        driver.quit()
