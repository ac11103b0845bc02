"""Each listener of an MCP server keeps a response open, and in the official SDK that takes a task for each.

Here the response to `subscriptions/listen` (protocol of 2026-07-28) is an `EventStream` of operations, whose keys are
the resources that the client has named. Everything else is the SDK's. `mcp_listen.md` is the guide.

    python -m pip install 'mcp>=2.3'
    python -m purgatory.uvicorn examples.mcp_listen:app

Copy everything above `listeners = Listeners()`.
"""

import json
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from mcp import types
from mcp.server.auth.middleware.bearer_auth import RequireAuthMiddleware
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.streamable_http import check_accept_headers
from mcp.server.subscriptions import InMemorySubscriptionBus
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from mcp.shared import subscriptions as events
from mcp.shared.inbound import InboundModernRoute, classify_inbound_request, find_duplicated_routing_header
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.asgi import Event, EventStream, closing_on_shutdown

MAX_BODY = 64 * 1024  # bytes. Longer requests are left to the SDK.
MAX_LISTENERS = 100_000  # More are left to the SDK, which has a limit of its own.
MAX_EVENTS = 10_000  # to remember
FLAGS: dict[str, events.ServerEvent] = {
    "tools_list_changed": events.ToolsListChanged(),
    "prompts_list_changed": events.PromptsListChanged(),
    "resources_list_changed": events.ResourcesListChanged(),
}


class Listeners(InMemorySubscriptionBus):
    """The SDK's bus of events, for which operations wait too. Each event is a key."""

    def __init__(self) -> None:
        super().__init__()
        self.purgatory = DelayedOperationPurgatory("listen")
        self.published = 0
        # The number of the last event of each kind, and the largest number that was forgotten.
        self.last: OrderedDict[events.ServerEvent, int] = OrderedDict()
        self.forgotten = 0

    def notify(self, event: events.ServerEvent) -> None:
        self.published += 1
        self.last[event] = self.published
        self.last.move_to_end(event)
        if len(self.last) > MAX_EVENTS:
            _, self.forgotten = self.last.popitem(last=False)
        self.purgatory.check_and_complete_soon(event)

    async def publish(self, event: events.ServerEvent) -> None:
        self.notify(event)
        await super().publish(event)


class Stream:
    """The response of one listener."""

    __slots__ = ("after", "honored", "is_acknowledged", "listeners", "meta", "operation", "request_id", "wanted")

    def __init__(self, listeners: Listeners, request_id: str | int, requested: types.SubscriptionFilter) -> None:
        self.listeners = listeners
        self.request_id = request_id
        self.after = listeners.published
        self.is_acknowledged = False
        self.operation: DelayedOperation[bool] | None = None
        self.meta: dict[str, Any] = {events.SUBSCRIPTION_ID_META_KEY: request_id}
        uris = requested.resource_subscriptions or None
        flags = {name: True for name in FLAGS if getattr(requested, name)}
        self.honored = types.SubscriptionFilter(**flags, resource_subscriptions=uris)
        self.wanted = [*map(FLAGS.__getitem__, flags), *map(events.ResourceUpdated, dict.fromkeys(uris or ()))]

    def changed(self) -> list[events.ServerEvent]:
        """Return what may have changed since the last messages, which is everything if events were forgotten."""
        last = self.listeners.last if self.after >= self.listeners.forgotten else dict.fromkeys(self.wanted, math.inf)
        return [event for event in self.wanted if last.get(event, 0) > self.after]

    def has_news(self) -> bool:
        return not self.is_acknowledged or bool(self.changed())

    def follow(self, _: str | None) -> DelayedOperation[bool]:
        """Wait for events after the last messages. These have no ids, because the protocol resumes no stream."""
        keys = self.wanted or (self.request_id,)
        self.operation = self.listeners.purgatory.wait_for(self.has_news, *keys, timeout=15.0)
        return self.operation

    def render(self, _: bool) -> Iterator[Event]:
        """Yield the messages of the protocol: first the acknowledgement, and at the end the SDK's result."""
        if not self.is_acknowledged:
            params = types.SubscriptionsAcknowledgedNotificationParams(notifications=self.honored, _meta=self.meta)
            yield message(types.SubscriptionsAcknowledgedNotification(params=params))
        for event in self.changed():
            yield message(events.event_to_notification(event, self.meta))
        self.is_acknowledged, self.after = True, self.listeners.published
        if self.operation is not None and self.operation.outcome == "closed":
            result = dumped(types.SubscriptionsListenResult(_meta=self.meta))
            yield Event(json.dumps({"jsonrpc": "2.0", "id": self.request_id, "result": result}), event="message")


def message(notification: Any) -> Event:
    return Event(json.dumps({"jsonrpc": "2.0", **dumped(notification)}), event="message")


def dumped(model: Any) -> dict[str, Any]:
    return dict(model.model_dump(mode="json", by_alias=True, exclude_none=True))


class Listening:
    """The SDK's endpoint, which answers `subscriptions/listen` with streams that keep no task."""

    def __init__(self, app: ASGIApp, listeners: Listeners, security: TransportSecuritySettings | None = None) -> None:
        self.app = app
        self.listeners = listeners
        self.security = TransportSecurityMiddleware(security)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if Headers(scope=scope).get("mcp-method") != "subscriptions/listen":
            await self.app(scope, receive, send)
            return
        body, is_more = b"", True
        while is_more and len(body) <= MAX_BODY:
            received = await receive()
            body += received.get("body", b"")
            is_more = received.get("more_body", False)
        stream = None if is_more or len(body) > MAX_BODY else await self.stream(Request(scope), body)
        read: list[Message] = [{"type": "http.request", "body": body, "more_body": is_more}]

        async def again() -> Message:
            return read.pop() if read else await receive()

        await (stream or self.app)(scope, receive if stream else again, send)

    async def stream(self, request: Request, body: bytes) -> EventStream[bool] | None:
        """Return the response, or `None` if the SDK must refuse the request."""
        if request.method != "POST" or await self.security.validate_request(request, is_post=True):
            return None
        try:
            decoded: Mapping[str, Any] = json.loads(body)
            asked = types.JSONRPCRequest.model_validate(decoded)
            requested = types.SubscriptionFilter.model_validate((asked.params or {})["notifications"])
        except (ValueError, RecursionError, KeyError, ValidationError):
            return None
        if find_duplicated_routing_header(request.headers.items()) or check_accept_headers(request) != (True, True):
            return None
        route = classify_inbound_request(decoded, headers=dict(request.headers))
        if not isinstance(route, InboundModernRoute) or self.listeners.purgatory.num_delayed >= MAX_LISTENERS:
            return None
        stream = Stream(self.listeners, asked.id, requested)
        return EventStream(stream.follow, stream.render)


def park_listeners(app: Starlette, listeners: Listeners, security: TransportSecuritySettings) -> None:
    """Let `server.streamable_http_app()` answer its listeners with parked streams, behind its authentication."""
    (route,) = [route for route in app.routes if isinstance(route, Route) and route.path == "/mcp"]
    guard = route.endpoint if isinstance(route.endpoint, RequireAuthMiddleware) else route
    guard.app = Listening(guard.app, listeners, security)


listeners = Listeners()
server = MCPServer("Notes", subscriptions=listeners, lifespan=lambda _: closing_on_shutdown(listeners.purgatory))
notes = {"todo": "water the plants"}


@server.resource("note://{name}")
def note(name: str) -> str:
    return notes[name]


@server.tool()
async def edit_note(name: str, text: str, ctx: Context[Any, Any]) -> str:
    """Write a note, and notify its listeners."""
    notes[name] = text
    await ctx.notify_resource_updated(f"note://{name}")
    return "written"


LOCAL = TransportSecuritySettings(allowed_hosts=["127.0.0.1:*", "localhost:*"], allowed_origins=["http://localhost:*"])
app = server.streamable_http_app(transport_security=LOCAL)
park_listeners(app, listeners, LOCAL)
