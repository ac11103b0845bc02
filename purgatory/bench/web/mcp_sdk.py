"""The same events by `subscriptions/listen` of the MCP Python SDK, to which a topic is a resource that is updated."""

import json
import sys
from collections.abc import Callable
from typing import Any, Final

from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated, ServerEvent
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

_VERSION: Final = "2026-07-28"


class _Bus(InMemorySubscriptionBus):
    """The SDK's bus, which counts who has come."""

    listeners = 0

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        self.listeners += 1
        return super().subscribe(listener)


_bus = _Bus()


async def publish(request: Request) -> Response:
    """`POST /publish`."""
    await _bus.publish(ResourceUpdated(uri=f"topic://{request.query_params['topic']}"))
    return JSONResponse(None)


async def waiting(request: Request) -> Response:
    """`GET /waiting`."""
    return JSONResponse(_bus.listeners)


server: Server[Any] = Server("bench", on_subscriptions_listen=ListenHandler(_bus, max_subscriptions=sys.maxsize))
routes = [Route("/publish", publish, methods=["POST"]), Route("/waiting", waiting)]
app = server.streamable_http_app(custom_starlette_routes=routes)


def listen(uri: str) -> bytes:
    """Return a client's request to listen for updates of a resource."""
    meta = {"protocolVersion": _VERSION, "clientCapabilities": {}}
    params = {
        "_meta": {f"io.modelcontextprotocol/{name}": value for name, value in meta.items()},
        "notifications": {"toolsListChanged": True, "resourceSubscriptions": [uri]},
    }
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params})
    head = f"""POST /mcp HTTP/1.1
Host: localhost:1
Accept: application/json, text/event-stream
Content-Type: application/json
Content-Length: {len(body)}
MCP-Protocol-Version: {_VERSION}
Mcp-Method: subscriptions/listen

"""
    return (head.replace("\n", "\r\n") + body).encode()
