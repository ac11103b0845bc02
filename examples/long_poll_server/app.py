"""The HTTP side: parse, hand an operation to a purgatory, await it, answer."""

import asyncio
import math
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import asdict
from ipaddress import ip_address
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Match, Route

from examples.long_poll_server import answers, demo, live, openapi, requests, static
from examples.long_poll_server.guard import Guard
from examples.long_poll_server.limits import PendingByClient, Room, bounded, jittered
from examples.long_poll_server.log import MessageLog
from examples.long_poll_server.operations import DelayedFetch, DelayedProduce
from examples.long_poll_server.quotas import Quotas
from examples.long_poll_server.settings import Settings
from examples.long_poll_server.store import (
    MAX_REPLICAS,
    Store,
    StoreFailed,
    StoreFull,
    StoreUnavailable,
    StoreUncertain,
    TooManyReplicas,
)
from purgatory import (
    Delay,
    DelayedOperationPurgatory,
    OperationCancelled,
    PurgatoryClosed,
    PurgatoryFull,
)
from purgatory.asgi import closing_on_shutdown, unless_disconnected
from purgatory.metrics.prometheus import JournalCollector, PurgatoryCollector

if TYPE_CHECKING:
    from purgatory.journal import Journal

MAX_DELAY = 30.0
"""Seconds. A client that would have to wait longer for its quota is told to come again."""


class LongPollServer:
    """The log, the purgatories and the endpoints that tie them together."""

    def __init__(self, settings: Settings, journal: "Journal | None" = None) -> None:
        """Serve as `settings` say. Finished operations are written to `journal`."""
        self.settings = settings
        self.fetches = DelayedOperationPurgatory("fetch", max_pending=settings.max_pending)
        self.produces = DelayedOperationPurgatory("produce", max_pending=settings.max_pending)
        self.throttled = DelayedOperationPurgatory("throttle", max_pending=settings.max_pending)
        self._purgatories: tuple[DelayedOperationPurgatory, ...] = (self.fetches, self.produces, self.throttled)
        self.quotas = None if settings.publish_rate is None else Quotas(settings.publish_rate)
        self.fetching = PendingByClient(settings.max_pending_client)
        self.producing = PendingByClient(settings.max_pending_client)
        self.sending = answers.Sending(self.fetching)
        self.bodies = requests.bodies()
        self.log = self._open_log()
        self.room = Room(self.log, settings.max_topics, settings.max_messages)
        self.journal = journal
        if journal is not None:
            for purgatory in self._purgatories:
                purgatory.add_listener(journal.write)
        self.live = live.StatisticsTopic(self.fetches, settings.instance)
        self.demo = demo.Demo(self.live.unseen, bodies=self.bodies) if settings.demo else None
        if self.demo is not None:
            self._purgatories += (self.demo.purgatory,)
        self.live.show(*self._purgatories, demo=self.demo)
        self.registry = CollectorRegistry()
        self.registry.register(PurgatoryCollector(*self._purgatories))
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        if journal is not None:
            self.registry.register(JournalCollector(journal))
        self.app = Starlette(
            routes=[
                Route("/topics/{topic}/messages", self.produce, methods=["POST"]),
                Route("/topics/{topic}/messages", self.fetch, methods=["GET"]),
                Route("/statistics", self.statistics),
                Route("/metrics", self.metrics),
                Route("/demo", demo.refuse if self.demo is None else self.demo.put, methods=["PUT"]),
                Route("/openapi.json", self.description),
                *static.routes(),
            ],
            middleware=[Middleware(Guard, settings.allowed_hosts)],
            exception_handlers={
                HTTPException: _refuse,
                PurgatoryFull: _busy,
                PurgatoryClosed: _busy,
                OperationCancelled: _gone,
                ClientDisconnect: _gone,
                sqlite3.Error: _not_stored,
                StoreFailed: _not_stored,
                StoreUnavailable: _unavailable,
                Exception: _failed,
            },
            lifespan=self._lifespan,
        )
        self.app.router.redirect_slashes = False  # an empty 307 helps no client

    async def produce(self, request: Request) -> Response:
        """`POST /topics/{topic}/messages?acks=0&timeout=5`: store a message, and wait for that many replicas."""
        topic = requests.name("topic", request.path_params["topic"])
        live.refuse_to_store(topic)
        parameters = requests.query(request, {"acks", "timeout"})
        acks = requests.integer(parameters, "acks", 0, 0, requests.MAX_ACKS)
        timeout = bounded(requests.seconds(parameters, "timeout", 5.0), self.settings.max_wait)
        with self.producing.one_more(_address(request)):
            due = self._due(request)  # a refusal comes before the body is read
            value = await requests.value(request, self.bodies)
            if acks == 0:
                offset = await self._append(topic, value)
                acknowledged = True
            else:
                offset, acknowledged = await self._append_and_wait(request, topic, value, acks, timeout)
            await self._throttle(request, due)
        if acknowledged:
            return JSONResponse({"topic": topic, "offset": offset}, 201)
        error = "the message is stored, but too few replicas have acknowledged it"
        return JSONResponse({"error": error, "topic": topic, "offset": offset}, 504)

    async def fetch(self, request: Request) -> Response:
        """`GET /topics/{topic}/messages?offset=0&min_messages=1&max_messages=500&wait=30&replica=NAME`."""
        topic = requests.name("topic", request.path_params["topic"])
        parameters = requests.query(request, {"offset", "min_messages", "max_messages", "wait", "replica"})
        offset = requests.integer(parameters, "offset", 0, 0, requests.MAX_OFFSET)
        max_messages = requests.integer(parameters, "max_messages", 500, 1, requests.MAX_MESSAGES)
        min_messages = requests.integer(parameters, "min_messages", 1, 0, requests.MAX_MESSAGES)
        wait = jittered(bounded(requests.seconds(parameters, "wait", 30.0), self.settings.max_wait))
        if topic.startswith(live.RESERVED):
            if "replica" in parameters:
                raise HTTPException(400, f"{topic} has no replicas")
            with self.fetching.one_more(_address(request)):
                return await self._fetch_live(request, topic, offset, min_messages, max_messages, wait)
        if "replica" in parameters:
            await self._acknowledge(topic, requests.name("replica", parameters["replica"]), offset)

        is_enough = max(0, self.log.end(topic) - offset) >= min_messages
        with nullcontext() if is_enough else self.fetching.one_more(_address(request)):
            end = await self.wait(request, topic, offset, min_messages, wait)
        known = request.headers.get("if-none-match", "")
        answer = await answers.messages(self.sending, self.log, topic, offset, end, max_messages, known)
        if request.method == "HEAD" and isinstance(answer, StreamingResponse):
            # Its client knows that no body comes, and goes on with the next request: so it has to be complete.
            answer.body_iterator = _nothing()
        return answer

    def has_grown(self, topic: str) -> None:
        """Called by the log when it has stored messages of `topic`."""
        self.fetches.check_and_complete_soon(topic)

    async def wait(self, request: Request, topic: str, offset: int, min_messages: int, wait: float) -> int:
        """Wait for that many messages, or that many seconds. Returns the end of the topic then."""
        operation = DelayedFetch(self.log, topic, offset, min_messages, wait)
        self.fetches.try_complete_else_watch(operation, [topic])
        try:
            # Watched first, then asked: what other processes store is in the answer, or finds the operation watched.
            await self.log.refresh([topic])
        except BaseException:
            operation.cancel()
            raise
        if not operation.done():
            operation.try_complete()
        await unless_disconnected(request.receive, operation)
        return self.log.end(topic)

    async def _fetch_live(
        self, request: Request, topic: str, offset: int, least: int, most: int, wait: float
    ) -> Response:
        offset = self.live.start(topic, offset)
        with self.live.looking():
            operation = DelayedFetch(self.live, topic, offset, least, wait)
            end = await unless_disconnected(request.receive, self.fetches.try_complete_else_watch(operation, [topic]))
        return answers.whole(self.sending, *await self.live.read(topic, offset, end, most))

    async def statistics(self, request: Request) -> Response:
        """`GET /statistics`: of each purgatory."""
        return JSONResponse({purgatory.name: asdict(purgatory.statistics()) for purgatory in self._purgatories})

    async def description(self, request: Request) -> Response:
        """`GET /openapi.json`: all of this."""
        return JSONResponse(openapi.describe(self.settings))

    async def metrics(self, request: Request) -> Response:
        """`GET /metrics`: for Prometheus."""
        try:
            encode, media_type = choose_encoder(request.headers.get("accept", ""))
        except (TypeError, ValueError):  # a version that is no number
            encode, media_type = choose_encoder("")
        return Response(encode(self.registry), media_type=media_type)

    async def _append(self, topic: str, value: str) -> int:
        if self.log.end(topic) == 0:
            await self.log.refresh([topic])  # another process may know of it
        with self.room.one_more(topic):
            return await self.log.append(topic, value)

    async def _append_and_wait(
        self, request: Request, topic: str, value: str, acks: int, timeout: float
    ) -> tuple[int, bool]:
        produce = self.produces.try_complete_else_watch(DelayedProduce(self.log, topic, acks, timeout), [topic])
        try:
            produce.offset = offset = await self._append(topic, value)
        except BaseException:
            produce.cancel()
            raise
        if not produce.done():
            produce.try_complete()
        return offset, await unless_disconnected(request.receive, produce)

    def _due(self, request: Request) -> float:
        """When the client may be answered, so that it keeps to its quota."""
        now = asyncio.get_running_loop().time()
        if self.quotas is None:
            return now
        client = _address(request)
        delay = self.quotas.delay(client, now)
        most = bounded(MAX_DELAY, self.settings.max_wait)
        if delay > most:
            error = f"more than {self.quotas.rate:g} messages a second"
            raise HTTPException(429, error, {"Retry-After": str(math.ceil(delay - most))})
        self.quotas.publish(client, now)
        return now + delay

    async def _throttle(self, request: Request, due: float) -> None:
        delay = due - asyncio.get_running_loop().time()
        if delay > 0:
            with suppress(PurgatoryFull, PurgatoryClosed):  # the message is stored: then the answer comes at once
                await unless_disconnected(
                    request.receive, self.throttled.try_complete_else_watch(Delay(delay), [_address(request)])
                )

    async def _acknowledge(self, topic: str, replica: str, offset: int) -> None:
        await self.log.refresh([topic])
        if offset > self.log.end(topic):
            raise HTTPException(409, f"the replica is at {offset}, ahead of the topic's end {self.log.end(topic)}")
        if self.log.end(topic) == 0:
            return  # the number of topics without a message is unbounded
        try:
            await self.log.acknowledge(topic, replica, offset)
        except TooManyReplicas:
            raise HTTPException(409, f"the topic has {MAX_REPLICAS} replicas already") from None
        self.produces.check_and_complete_soon(topic)

    def _open_log(self) -> Store:
        if self.settings.database is None:
            return MessageLog(self.settings.data, self.has_grown)
        from examples.long_poll_server.postgres import PostgresLog  # which needs the extra `relay`

        return PostgresLog(self.settings.database, self.fetches, self.produces)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        await self.log.start()
        async with closing_on_shutdown(*self._purgatories):
            yield
        if self.quotas is not None:
            self.quotas.close()
        await self.log.close()
        if self.journal is not None:
            await self.journal.aclose()


def _address(request: Request) -> str:
    """The address of the client, or "" if a proxy has given something else: an invented text is not kept."""
    host = "" if request.client is None else request.client.host
    try:
        return str(ip_address(host.partition("%")[0]))  # also the zone may be anything
    except ValueError:
        return ""


async def _nothing() -> AsyncIterator[str]:
    return
    yield


async def _refuse(request: Request, exception: Exception) -> Response:
    assert isinstance(exception, HTTPException)
    headers = exception.headers
    if exception.status_code == 405:
        headers = {"Allow": ", ".join(sorted(_methods(request) or static.METHODS))}
    return JSONResponse({"error": exception.detail}, exception.status_code, headers)


def _methods(request: Request) -> set[str]:
    """Those of the path. Starlette itself tells those of the first of its routes."""
    return {
        method
        for route in request.app.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }


async def _busy(request: Request, exception: Exception) -> Response:
    reason = "is shutting down" if isinstance(exception, PurgatoryClosed) else "has as many waiting requests as it may"
    return JSONResponse({"error": f"the server {reason}"}, 503, {"Retry-After": "1"})


async def _gone(request: Request, exception: Exception) -> Response:
    # This is not read: the client has disconnected.
    return Response(status_code=499)


async def _not_stored(request: Request, exception: Exception) -> Response:
    is_full = isinstance(exception, StoreFull) or getattr(exception, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return JSONResponse({"error": f"the database failed: {exception}"}, 507 if is_full else 500)


async def _unavailable(request: Request, exception: Exception) -> Response:
    error = str(exception)
    if isinstance(exception, StoreUncertain) and request.method == "POST":
        error += ": the message may be stored, or may not"
    return JSONResponse({"error": error}, 503, {"Retry-After": "1"})


async def _failed(request: Request, exception: Exception) -> Response:
    # It is raised again, so that uvicorn logs it.
    return JSONResponse({"error": "the server has made a mistake"}, 500)
