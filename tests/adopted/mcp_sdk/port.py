"""The MCP Python SDK's `subscriptions/listen` over HTTP, as in `examples/mcp_listen.py`: `install()` puts it in place.

The SDK has a task for each listener, with a stream of objects in memory, and another task that watches for its
disconnect. As a plugin of pytest, this module runs the SDK's own tests so: `pytest -p port`.
"""

from typing import Any
from weakref import WeakKeyDictionary

from mcp.server import streamable_http_manager as manager
from mcp.server.subscriptions import ListenHandler
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from examples.mcp_listen import Listeners, Listening

_listeners: WeakKeyDictionary[ListenHandler, Listeners] = WeakKeyDictionary()
served = 0
"""How many requests for a stream have been seen."""


def of(handler: ListenHandler) -> Listeners:
    """The listeners of a server, which hear what its bus hears."""
    if handler not in _listeners:
        _listeners[handler] = Listeners()
        handler._bus.subscribe(_listeners[handler].notify)
    return _listeners[handler]


def install() -> None:
    """Let the SDK serve its listeners so from now on."""
    names: dict[str, Any] = vars(manager)
    own, close = names["handle_modern_request"], ListenHandler.close

    async def handle(
        app: Any, security: Any, json_response: bool, state: Any, scope: Scope, receive: Receive, send: Send
    ) -> None:
        async def sdk(scope: Scope, receive: Receive, send: Send) -> None:
            await own(app, security, json_response, state, scope, receive, send)

        global served
        entry = app.get_request_handler("subscriptions/listen")
        handler = None if entry is None else entry.handler
        if isinstance(handler, ListenHandler):
            served += Headers(scope=scope).get("mcp-method") == "subscriptions/listen"
            await Listening(sdk, of(handler), security)(scope, receive, send)
        else:
            await sdk(scope, receive, send)

    def close_all(handler: ListenHandler) -> None:
        close(handler)
        if handler in _listeners:
            _listeners.pop(handler).purgatory.close()

    names["handle_modern_request"] = handle
    ListenHandler.close = close_all  # type: ignore[method-assign, assignment]


def pytest_configure() -> None:
    install()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(f"listeners served as operations: {served}")
