"""An MCP server whose listeners cost no task: `subscriptions/listen` of the protocol of 2026-07-28.

    .venv/bin/python -m pip install -e '.[server]' 'mcp>=2.3'
    .venv/bin/python -m purgatory.uvicorn examples.mcp_listen:app

A client of the SDK, `Client("http://127.0.0.1:8000/mcp")`, hears of each change of a note by `async for each in told`,
after `async with client.listen(resource_subscriptions=["note://todo"]) as told`.

A client that listens has one response that stays open, and is told when what it has named changes: the list of tools,
or a resource. Here that response is an `EventStream`, whose operations wait on these very events as their keys, and the
rest is the official SDK's. It also does the validating: a request in which something is wrong is left to it.

`Listeners` and `Listening` are what you copy. Put them inside of what asks your users for their passwords, because the
listeners do not pass the SDK's own middlewares.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from mcp import types
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.streamable_http import check_accept_headers
from mcp.server.subscriptions import InMemorySubscriptionBus
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from mcp.shared import subscriptions
from mcp.shared.inbound import InboundModernRoute, classify_inbound_request, find_duplicated_routing_header
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY, ServerEvent, event_to_notification
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.asgi import Event, EventStream, closing_on_shutdown

HEARTBEAT = 15.0  # seconds, as the SDK's
MAX_BODY = 64 * 1024
FLAGS: dict[str, ServerEvent] = {
    "tools_list_changed": subscriptions.ToolsListChanged(),
    "prompts_list_changed": subscriptions.PromptsListChanged(),
    "resources_list_changed": subscriptions.ResourcesListChanged(),
}


class Listeners(InMemorySubscriptionBus):
    """The SDK's bus of events, on which operations wait too: each event is a key."""

    def __init__(self) -> None:
        super().__init__()
        self.purgatory = DelayedOperationPurgatory("listen")
        self.published = 0
        self.last: dict[ServerEvent, int] = {}
        """The number of the last event of each kind. One is enough: it says that something changed, not what."""

    def tell(self, event: ServerEvent) -> None:
        """Tell the operations that wait for `event`."""
        self.published += 1
        self.last[event] = self.published
        self.purgatory.check_and_complete_soon(event)

    async def publish(self, event: ServerEvent) -> None:
        """Tell those of other transports too."""
        self.tell(event)
        await super().publish(event)


class Listen(DelayedOperation["Listen"]):
    """Waits until something has changed after the event of that number."""

    __slots__ = ("after", "listeners", "wanted")

    def __init__(self, listeners: Listeners, wanted: Iterable[ServerEvent], after: int | None) -> None:
        super().__init__(HEARTBEAT)
        self.listeners = listeners
        self.wanted = wanted
        self.after = after

    def changed(self) -> list[ServerEvent]:
        last, after = self.listeners.last, self.listeners.published if self.after is None else self.after
        return [event for event in self.wanted if last.get(event, 0) > after]

    def try_complete(self) -> bool:
        return (self.after is None or bool(self.changed())) and self.force_complete()

    def on_complete(self) -> "Listen":
        return self


class Stream:
    """The response of one listener."""

    __slots__ = ("honored", "listeners", "meta", "request_id", "wanted")

    def __init__(self, listeners: Listeners, request_id: str | int, requested: types.SubscriptionFilter) -> None:
        self.listeners = listeners
        self.request_id = request_id
        self.meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: request_id}
        uris = requested.resource_subscriptions or None
        flags = {name: True for name in FLAGS if getattr(requested, name)}
        self.honored = types.SubscriptionFilter(**flags, resource_subscriptions=uris)
        resources = map(subscriptions.ResourceUpdated, uris or ())
        self.wanted: list[ServerEvent] = [*map(FLAGS.__getitem__, flags), *resources]

    def follow(self, last: str | None) -> DelayedOperation[Listen]:
        """Wait for what comes after the last event that was sent. The first one acknowledges the request."""
        operation = Listen(self.listeners, self.wanted, None if last is None else int(last))
        return self.listeners.purgatory.try_complete_else_watch(operation, self.wanted or [self.request_id])

    def render(self, listen: Listen) -> Iterable[Event]:
        """Return the messages of the protocol, and at the end the SDK's result."""
        if listen.after is None:
            params = types.SubscriptionsAcknowledgedNotificationParams(notifications=self.honored, _meta=self.meta)
            acknowledged = types.SubscriptionsAcknowledgedNotification(params=params)
            yield self.event(types.JSONRPCNotification, dumped(acknowledged))
        for event in listen.changed():
            yield self.event(types.JSONRPCNotification, dumped(event_to_notification(event, self.meta)))
        if listen.outcome == "closed":
            result = dumped(types.SubscriptionsListenResult(_meta=self.meta))
            yield self.event(types.JSONRPCResponse, {"id": self.request_id, "result": result})

    def event(self, kind: Any, fields: dict[str, Any]) -> Event:
        """Return the event for a message, which has the number of what was published so far."""
        text = json.dumps(dumped(kind(jsonrpc="2.0", **fields)))
        return Event(text, id=str(self.listeners.published), event="message")


def dumped(model: Any) -> dict[str, Any]:
    fields: dict[str, Any] = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return fields


class Listening:
    """The SDK's application, in which `subscriptions/listen` is answered by streams that keep no task."""

    def __init__(self, app: ASGIApp, listeners: Listeners, security: TransportSecuritySettings | None = None) -> None:
        self.app = app
        self.listeners = listeners
        self.security = TransportSecurityMiddleware(security)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            async with closing_on_shutdown(self.listeners.purgatory):
                await self.app(scope, receive, send)
        elif scope["type"] == "http" and Headers(scope=scope).get("mcp-method") == "subscriptions/listen":
            body, is_more = b"", True
            while is_more and len(body) <= MAX_BODY:
                message = await receive()
                body += message.get("body", b"")
                is_more = message.get("more_body", False)
            stream = None if is_more else await self.stream(Request(scope), body)
            read: list[Message] = [{"type": "http.request", "body": body, "more_body": is_more}]

            async def again() -> Message:
                return read.pop() if read else await receive()

            await (stream or self.app)(scope, receive if stream else again, send)
        else:
            await self.app(scope, receive, send)

    async def stream(self, request: Request, body: bytes) -> EventStream[Listen] | None:
        """Return the response, or `None` if the SDK has to refuse the request."""
        is_post = request.method == "POST"
        if await self.security.validate_request(request, is_post) or not is_post:
            return None
        try:
            decoded: Mapping[str, Any] = json.loads(body)
            asked = types.JSONRPCRequest.model_validate(decoded)
            requested = types.SubscriptionFilter.model_validate((asked.params or {})["notifications"])
        except (ValueError, RecursionError, KeyError, ValidationError):
            return None
        if find_duplicated_routing_header(request.headers.items()) or check_accept_headers(request) != (True, True):
            return None
        if not isinstance(classify_inbound_request(decoded, headers=dict(request.headers)), InboundModernRoute):
            return None
        stream = Stream(self.listeners, asked.id, requested)
        return EventStream(stream.follow, stream.render)


listeners = Listeners()
server = MCPServer("Notes", subscriptions=listeners)
notes = {"todo": "water the plants"}


@server.resource("note://{name}")
def note(name: str) -> str:
    return notes[name]


@server.tool()
async def edit_note(name: str, text: str, ctx: Context[Any, Any]) -> str:
    """Write a note, and tell those who listen."""
    notes[name] = text
    await ctx.notify_resource_updated(f"note://{name}")
    return "written"


LOCAL = TransportSecuritySettings(allowed_hosts=["127.0.0.1:*", "localhost:*"], allowed_origins=["http://localhost:*"])
app = Listening(server.streamable_http_app(transport_security=LOCAL), listeners, LOCAL)
