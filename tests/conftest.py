"""What all tests share: async tests run on asyncio's own loop and on uvloop; the clock of the others is virtual."""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping

import httpx
import pytest
import uvloop
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession
from selenium.webdriver import Chrome
from xdist.workermanage import WorkerController

from purgatory import DelayedOperationPurgatory, VirtualClock
from purgatory.spark.session import session
from tests.browser import browser
from tests.figures import FIGURES
from tests.operations import FaultLog
from tests.pages import Page, opened
from tests.relays import MemoryBroker
from tests.server_process import ServerProcess, running
from tests.servers import PostgresServer, RedisServer, running_postgres, running_redis

# The same examples every time, so that a run can be trusted; HYPOTHESIS_PROFILE=searching looks for new ones, thirty
# times as many. How fast an example runs is the machine's business.
settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("searching", settings.get_profile("steady"), derandomize=False, max_examples=3000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["figures"] = FIGURES


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController) -> None:
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


# Spark's processes, also those that tests start, live for seconds: compiling more thoroughly would not pay.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests, for it takes seconds to start. Without Java 17 this says where to get it."""
    with session("local[2]", {"spark.sql.shuffle.partitions": "4"}) as spark:
        yield spark


@pytest.fixture
def broker() -> MemoryBroker:
    """A broker in this process, for relays."""
    return MemoryBroker()


@pytest.fixture
def state() -> dict[str, int]:
    """What several processes would share."""
    return {}


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """One Redis for all tests of a process: take a channel of your own, and leave it running."""
    with running_redis() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL for all tests of a process: take a database of your own, and leave it running."""
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """One browser for all tests of a process."""
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def page_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server of the page."""
    with running(tmp_path_factory.mktemp("data"), "--demo", "--max-wait", "300") as server:
        yield server


@pytest.fixture
def page_http(page_server: ServerProcess) -> Iterator[httpx.Client]:
    """Another client of the page's server."""
    with httpx.Client(base_url=page_server.url, timeout=60) as client:
        yield client


@pytest.fixture
def page(chrome: Chrome, page_server: ServerProcess) -> Iterator[Page]:
    """The page, open in the browser, which must find nothing wrong with it."""
    with opened(chrome, page_server.url) as page:
        yield page
