"""The picture of the report in the pipeline's guide, of a minute of 200 long-polling clients in virtual time.

`python -m tests.pipeline.picture FILE.png`
"""

import random
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from purgatory import DelayedOperation, DelayedOperationPurgatory, VirtualClock
from purgatory.journal import Journal
from purgatory.pipeline import report, trace
from purgatory.spark.session import session
from tests.support.browser import browser

_START: Final = 1_790_000_000
_CLIENTS: Final = 200
_KEYS: Final = 40
_STEP: Final = 0.005
"""Seconds until a client asks again."""


class Poll(DelayedOperation[None]):
    """A long poll of 20 seconds for a newer version of a key."""

    def __init__(self, is_new: Callable[[], bool], ended: Callable[[], None]) -> None:
        super().__init__(20.0)
        self._is_new = is_new
        self._ended = ended

    def try_complete(self) -> bool:
        """Complete if there is one."""
        return self._is_new() and self.force_complete()

    def on_complete(self) -> None:
        """There is no result."""

    def on_done(self) -> None:
        """Let the client ask again."""
        self._ended()


def write_journal(path: Path) -> None:
    """Write the journal of clients that ask again, while the busiest key changes ten times a second."""
    draws, clock, versions, ended = random.Random(1), VirtualClock(), [0] * _KEYS, list[int]()
    with Journal(str(path), "web-1", now=lambda: _START + clock.time()) as journal:
        purgatory = DelayedOperationPurgatory("news", clock=clock)
        purgatory.add_listener(journal.write)

        def poll(key: int) -> None:
            seen = versions[key]
            operation = Poll(lambda: versions[key] > seen, lambda: ended.append(key))
            purgatory.try_complete_else_watch(operation, [f"news/{key}"])

        for key in draws.choices(range(_KEYS), [1 / (key + 1) for key in range(_KEYS)], k=_CLIENTS):
            poll(key)
        while clock.time() < 60.0:
            clock.advance(_STEP)
            for key in range(_KEYS):
                if draws.random() < _STEP * 10 / (key + 1):
                    versions[key] += 1
                    purgatory.check_and_complete(f"news/{key}")
            again, ended[:] = ended[:], []
            for key in again:
                poll(key)
        purgatory.close()


def main(file: str) -> None:
    """Write the picture: the page up to its tables of keys, 1,100 pixels wide."""
    with TemporaryDirectory() as folder:
        write_journal(Path(folder, "journal"))
        with session() as spark:
            table = trace.of_days(spark, f"{folder}/journal", lambda day: True)
        page = report.report(table, f"{folder}/report", 0.05).page
        with browser(Path(folder), "--hide-scrollbars") as chromium:
            size = {"width": 1100, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            chromium.get(page.as_uri())
            last = "document.querySelectorAll('section')[2].getBoundingClientRect().bottom"
            size["height"] = int(chromium.execute_script(f"return {last} + 12"))
            chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            chromium.save_screenshot(file)


if __name__ == "__main__":
    main(sys.argv[1])
