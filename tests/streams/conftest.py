"""The fixtures of the tests of streams. Selenium is imported where a browser is needed: fast tests do without."""

from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from purgatory.streams.engine.streams import Streams
from purgatory.streams.settings import Settings
from purgatory.streams.storage.sqlite import WritingDatabase
from tests.streams.processes import client_of
from tests.streams.serving import Server, opened, serving
from tests.support.servers import PostgresServer
from tests.support.servers import postgres as postgres

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

    from tests.streams.pages import Page


@pytest.fixture
def database(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The DSN of a new database of PostgreSQL, for which its clients wait however busy the machine is."""
    monkeypatch.setattr("purgatory.streams.engine.store.PATIENCE", 300.0)
    monkeypatch.setattr("purgatory.streams.storage.postgresql._CONNECTING", 60)
    return postgres.create_database()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[WritingDatabase]:
    """A new database of SQLite, without a server, which does not wait for its disk."""
    with closing(WritingDatabase(tmp_path / "writer.sqlite")) as writer:
        writer.execute("PRAGMA synchronous = OFF")
        yield writer


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Of a new database of each kind."""
    if request.param == "sqlite":
        return Settings(data=str(tmp_path))
    return Settings(database=request.getfixturevalue("database"))


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with its defaults, but for the module's SETTINGS, unless the module has one of its own."""
    with serving(data=str(tmp_path_factory.mktemp("data")), **getattr(request.module, "SETTINGS", {})) as server:
        yield server


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture
async def client(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(server.url) as client:
        yield client


@pytest.fixture
async def streams(tmp_path: Path) -> AsyncIterator[Streams]:
    """The streams of a server, without one."""
    async with opened(Settings(data=str(tmp_path))) as streams:
        yield streams


@pytest.fixture(scope="session")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Chrome]":
    from tests.support.browser import browser

    with browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def page_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(data=str(tmp_path_factory.mktemp("data")), demo=True, long_poll_timeout=300.0) as server:
        httpx.put(f"{server.url}/v1/demo", json={"pending": 0})  # else it begins with the first page
        yield server


@pytest.fixture
def page_http(page_server: Server) -> Iterator[httpx.Client]:
    """Another client of the page's server."""
    with httpx.Client(base_url=page_server.url, timeout=60) as client:
        yield client


@pytest.fixture
def page(chrome: "Chrome", page_server: Server) -> "Iterator[Page]":
    """The page, open in the browser, which must find nothing wrong with it."""
    from tests.streams.pages import opened

    with opened(chrome, page_server.url) as page:
        yield page
