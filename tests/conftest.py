"""The tiers, and the fixtures of all tests; each part's folder has the fixtures of the part.

Async tests run on asyncio's own loop and on uvloop; the clock of the others is virtual. The core is the one that pip
installed, in C if it was compiled; with PURGATORY_PURE=1 in the environment it is the one in Python.
PURGATORY_TEST_LOOP names a module whose loop takes uvloop's place.
"""

import asyncio
import gc
import importlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, find, settings, strategies

from purgatory import DelayedOperationPurgatory, VirtualClock, __core__

# pytest compiles the assertions of test modules into conditions, which `python -O` keeps. Helpers must be registered.
pytest.register_assert_rewrite("tests.support")

from tests.support.operations import FaultLog  # noqa: E402

# A shell starts a background command with SIGINT ignored, and each process of a test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The examples are the same in every run. CI takes more of them in its slow runs, and HYPOTHESIS_PROFILE=searching looks
# for new ones. No deadline applies, because the speed of an example depends on the machine.
steady = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", steady, max_examples=40)
settings.register_profile("thorough", steady, max_examples=100)
settings.register_profile("searching", steady, derandomize=False, max_examples=3000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


SLOW: Final = (
    "adopted",
    "asgi/test_frameworks.py",
    "asgi/test_servers.py",
    "bench",
    "core/test_soak.py",
    "docs/test_figures.py",
    "docs/test_habits.py",
    "examples",
    "journal/test_compact.py",
    "loops",
    "package/test_extras.py",
    "package/test_types.py",
    "package/test_wheel.py",
    "pipeline",
    "relay/test_brokers.py",
    "streams",
    "uvicorn",
)
"""The folders and files of slow tests. They may need what the extra `dev` brings, and servers."""

FAST: Final = ("streams/test_model.py", "streams/test_official_python.py", "streams/test_store.py")
"""Fast files in these folders."""


def _is_slow(path: Path) -> bool:
    here = Path(__file__).parent
    return any(path.is_relative_to(here / each) for each in SLOW) and path not in [here / each for each in FAST]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    # Modules of slow tests import what may not be installed, so they are not even imported without need.
    if config.option.markexpr == "not slow" and collection_path.suffix == ".py" and _is_slow(collection_path):
        return True
    return None


def pytest_itemcollected(item: pytest.Item) -> None:
    if _is_slow(item.path):
        item.add_marker(pytest.mark.slow)


def pytest_report_header(config: pytest.Config) -> str:
    left_out = ' Slow tests are left out: run them too with -m ""' if config.option.markexpr == "not slow" else ""
    return f"core in {__core__}.{left_out}"


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    other = importlib.import_module(os.environ.get("PURGATORY_TEST_LOOP", "uvloop"))
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": other.new_event_loop}


def pytest_collection_finish() -> None:
    # Hypothesis makes its random numbers in the first search, and warns if the collector does not see who holds them.
    find(strategies.none(), lambda _: True)
    # Tests collect garbage thousands of times, and need not walk through pytest and all modules each time.
    gc.collect()
    gc.freeze()


@pytest.fixture
def clock() -> FaultLog:
    """A virtual clock that collects the faults reported to it."""
    return FaultLog()


@pytest.fixture
def purgatory(clock: VirtualClock) -> DelayedOperationPurgatory:
    """A purgatory on the virtual clock."""
    return DelayedOperationPurgatory("test", clock=clock)


@pytest.fixture
def by_reference_count_alone() -> Iterator[None]:
    """The garbage collector is off."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
