"""The fixtures of all tests, made of the core's test tools only; each part's folder has the fixtures of the part.

Async tests run on asyncio's own loop and on uvloop; the clock of the others is virtual.
"""

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pytest
import uvloop
from hypothesis import HealthCheck, settings

# Coverage counts the lines of the core in Python. PURGATORY_PURE=0 runs the tests on the one in C.
os.environ.setdefault("PURGATORY_PURE", "1")

from purgatory import DelayedOperationPurgatory, VirtualClock, __core__

# pytest compiles the assertions of test modules into conditions, which `python -O` keeps. Helpers must be registered.
pytest.register_assert_rewrite("tests.support")

from tests.support.figures import FIGURES  # noqa: E402
from tests.support.operations import FaultLog  # noqa: E402

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

# A shell starts a background command with SIGINT ignored, and each process of a test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The examples are the same in every run; HYPOTHESIS_PROFILE=searching looks for new ones, thirty times as many. No
# deadline applies, for the speed of an example depends on the machine.
settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("searching", settings.get_profile("steady"), derandomize=False, max_examples=3000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


def pytest_report_header() -> str:
    return f"core in {__core__}"


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


def pytest_collection_finish() -> None:
    # Tests collect garbage thousands of times, and need not walk through pytest and all modules each time.
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["figures"] = FIGURES


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: "WorkerController") -> None:
    FIGURES.extend(node.workeroutput.get("figures", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if FIGURES:
        terminalreporter.section("measured")
        for line in FIGURES:
            terminalreporter.line(line)


@pytest.fixture
def clock() -> FaultLog:
    """A virtual clock that collects the faults reported to it."""
    return FaultLog()


@pytest.fixture
def purgatory(clock: VirtualClock) -> DelayedOperationPurgatory:
    """A purgatory on the virtual clock."""
    return DelayedOperationPurgatory("test", clock=clock)
