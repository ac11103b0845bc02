"""The application: streams and subscriptions at their paths, and what an operator asks for."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from prometheus_client import CollectorRegistry, GCCollector, Info, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

import purgatory
from purgatory.asgi import closing_on_shutdown
from purgatory.metrics.prometheus import JournalCollector, ParkingCollector, PurgatoryCollector
from purgatory.relay import Relay
from purgatory.streams.admission import RETRY, Guard, Limits, Quotas, Refusal
from purgatory.streams.engine.live import LOOKING, Live
from purgatory.streams.engine.streams import Streams
from purgatory.streams.http.health import Health
from purgatory.streams.http.keys import Keys
from purgatory.streams.http.page import PATHS, PageEndpoint, page_routes
from purgatory.streams.http.replies import error
from purgatory.streams.http.requests import ROOT, below_root, check_path, relative
from purgatory.streams.http.streams import StreamEndpoint
from purgatory.streams.http.subscriptions import CONTROL, SubscriptionEndpoint
from purgatory.streams.http.webhooks import Webhooks
from purgatory.streams.settings import Settings
from purgatory.streams.storage.database import StorageError
from purgatory.streams.storage.opener import opener

if TYPE_CHECKING:
    from purgatory.journal import Journal

HEARTBEAT: Final = 3.0
"""Seconds between two proofs that the connection that listens to PostgreSQL is alive."""
_NOT_STARTED: Final = (
    "the Durable Streams server is not started: give the application around it lifespan=streams.lifespan,"
    " or enter `async with streams.lifespan(app):` in its own lifespan"
)

_CONTROL: Final = f"{CONTROL}/"

logger: Final = logging.getLogger("purgatory.streams")


class Application:
    """The ASGI application of a server, at the root or mounted.

    It changes no settings of the process: `purgatory serve` does that, around this.
    """

    def __init__(self, settings: Settings, collectors: Iterable[Collector] = ()) -> None:
        """With more figures in `/metrics`: those of `collectors`."""
        self.settings = settings
        self._collectors = list(collectors)
        self.streams: Streams
        """Those of the running server."""
        self._is_running = False
        self._has_warned = False
        self._guard = Guard(settings.allowed_hosts, settings.allowed_origin)
        self._described: tuple[str | None, Response] = None, Response()
        """The last answer of `/openapi.json`, and the prefix that it is for."""
        self.limits = Limits(settings)
        """Those of the clients."""
        self._other = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                Route("/openapi.json", self._description),
                *page_routes(),
            ],
            exception_handlers={HTTPException: _refused},
            lifespan=self.lifespan,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._other(scope, receive, send)
            return
        if not self._is_running:
            await self._not_started()(scope, receive, send)
            return
        if scope.get("root_path"):
            scope = relative(scope)
        try:
            self._guard.check(scope)
            check_path(scope)
        except Refusal as refusal:
            await error(refusal.status, str(refusal))(scope, receive, send)
            return
        path = scope["path"]
        if path.startswith(_CONTROL):
            await self._subscriptions(scope, receive, send)
        elif path.startswith(ROOT):
            await self._endpoint(scope, receive, send)
        elif path in PATHS:
            await self._page(scope, receive, send)
        else:
            await self._other(below_root(scope), receive, send)

    def _not_started(self) -> Response:
        if not self._has_warned:
            self._has_warned = True
            logger.error(_NOT_STARTED)
        return error(503, _NOT_STARTED, [RETRY])

    async def _health(self, request: Request) -> Response:
        """`GET /health`: whether the database does what requests need."""
        try:
            count = await self._looks.count()
        except StorageError as failure:
            return error(503, str(failure), [RETRY])
        return JSONResponse({"status": "ok", "instance": self.settings.instance, "streams": count})

    async def _metrics(self, request: Request) -> Response:
        """`GET /metrics`: for Prometheus."""
        try:
            encode, media_type = choose_encoder(request.headers.get("accept", ""))
        except (TypeError, ValueError):  # a version that is no number
            encode, media_type = choose_encoder("")
        # One in an iteration of the loop: it takes a millisecond, which all others would wait for.
        async with self._encoding:
            text = encode(self._registry)
            await asyncio.sleep(0)
        return Response(text, media_type=media_type)

    async def _description(self, request: Request) -> Response:
        """`GET /openapi.json`: the description of the server."""
        prefix = quote(request.scope.get("root_path", ""))
        if self._described[0] != prefix:
            self._described = prefix, JSONResponse(describe(self.settings, prefix))
        return self._described[1]

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncIterator[None]:
        """Run the server: the lifespan of the application that it is mounted in, or a part of that.

        Args:
            app: That application, which isn't used: so this fits `FastAPI(lifespan=streams.lifespan)`.

        Raises:
            RuntimeError: The server is running already.
            BlockingIOError: Another server uses the folder.
            OSError: The folder cannot be used.
            StorageError: The database cannot be used.
        """
        if self._is_running:
            raise RuntimeError("the Durable Streams server is running already: enter its lifespan once")
        settings = self.settings
        async with AsyncExitStack() as stack:
            opened = await asyncio.to_thread(opener, settings)
            stack.callback(opened.close)
            self.streams = streams = Streams(
                opened, max_pending=settings.max_pending, max_pending_client=settings.max_pending_client
            )
            stack.push_async_callback(streams.close)
            await streams.start()
            purgatories = [streams.reads]
            quotas = None
            if settings.append_rate is not None:
                quotas = Quotas(settings.append_rate, settings.max_pending)
                stack.callback(quotas.close)
                purgatories.append(quotas.purgatory)
            self._registry = CollectorRegistry()
            self._encoding = asyncio.Lock()
            ProcessCollector(registry=self._registry)
            GCCollector(registry=self._registry)
            for collector in (ParkingCollector(), *self._collectors):
                self._registry.register(collector)
            self._registry.register(PurgatoryCollector(*purgatories))
            Info("purgatory_server", "The process that answers", registry=self._registry).info(
                {"instance": settings.instance, "version": purgatory.__version__}
            )
            written = journal(settings)
            if written is not None:
                stack.push_async_callback(written.aclose)
                self._registry.register(JournalCollector(written))
                for each in purgatories:
                    each.add_listener(written.write)
            shared = streams.store if settings.database is not None else None
            live = Live(settings.instance, *purgatories, store=shared, demo=settings.demo)
            if settings.database is not None:
                relay = await stack.enter_async_context(_relay(streams, settings.database, live))
                live.announce = partial(relay.notify, LOOKING)
            keys = await Keys.load(streams)
            own = set() if settings.url is None else {_port(settings.url)}
            webhooks = Webhooks(streams, keys, settings.url, settings.local_webhooks, own)
            stack.push_async_callback(webhooks.close)
            streams.on_due = webhooks.due
            streams.look_for_due()
            await stack.enter_async_context(closing_on_shutdown(*purgatories, live))
            limits = self.limits
            self._endpoint = StreamEndpoint(streams, settings, limits, quotas)
            self._subscriptions = SubscriptionEndpoint(streams, settings, limits, keys, own)
            self._page = PageEndpoint(streams, settings, limits, live)
            self._looks = Health(streams)
            self._is_running = True
            try:
                yield
            finally:
                self._is_running = self._has_warned = False
                # They hold appends of late, and belong to this event loop.
                del self.streams, self._registry, self._looks
                del self._endpoint, self._subscriptions, self._page


def describe(settings: Settings, prefix: str = "") -> dict[str, Any]:
    """The description of a server with these settings, at the path `prefix`, in OpenAPI 3.1.

    Tests compare it with the server's answers.
    """
    text = _description_text()
    for name in ("long_poll_timeout", "max_streams", "max_units"):
        text = text.replace(f"{{{name}}}", f"{getattr(settings, name)}".removesuffix(".0"))
    described: dict[str, Any] = json.loads(text)
    return {**described, "servers": [{"url": prefix}]} if prefix else described


@cache
def _description_text() -> str:
    return files(__package__).joinpath("openapi.json").read_text("utf-8")


def _relay(streams: Streams, database: str, live: Live) -> Relay:
    from purgatory.relay.postgres import PostgresBroker
    from purgatory.streams.storage.postgresql import CHANNEL

    broker = PostgresBroker(database, CHANNEL)
    refresh = live.listening(streams.refresh)
    return Relay(streams.reads, broker=broker, refresh=refresh, invalidate=streams.invalidate, heartbeat=HEARTBEAT)


def _port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


async def _refused(request: Request, exception: Exception) -> Response:
    assert isinstance(exception, HTTPException)
    headers = [(name.lower().encode(), value.encode()) for name, value in (exception.headers or {}).items()]
    return error(exception.status_code, exception.detail, headers)


def journal(settings: Settings) -> "Journal | None":
    """The journal, if the settings name one.

    Raises `ModuleNotFoundError` if its extra is not installed, `OSError` if its folder cannot be written to.
    """
    if settings.journal is None:
        return None
    from purgatory.journal import Journal

    return Journal(Path(settings.journal), settings.instance)
