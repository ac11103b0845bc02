"""The page: its files, the statistics that it polls for, and the demo traffic that it may ask for."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope

from purgatory import DelayedOperationPurgatory
from purgatory.asgi import DelayedResponse
from purgatory.streams.admission import Limits, Refusal
from purgatory.streams.core.errors import Invalid
from purgatory.streams.engine.demo import MAX_PENDING
from purgatory.streams.engine.live import Live
from purgatory.streams.engine.streams import Streams
from purgatory.streams.http import requests
from purgatory.streams.http.endpoint import Endpoint
from purgatory.streams.http.replies import Reply
from purgatory.streams.http.requests import Headers
from purgatory.streams.settings import Settings

STATISTICS: Final = "/v1/statistics"
DEMO: Final = "/v1/demo"
PATHS: Final = (STATISTICS, DEMO)
"""The paths of `PageEndpoint`."""
_FILES: Final = Path(__file__).parent.parent / "page"
_HEADERS: Final = {
    # Nothing but the page's own files and requests to this server; and no string becomes markup (Trusted Types).
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Kept, but asked for each time, by ETag: a new version of the server has a new page at once.
    "Cache-Control": "no-cache",
    "Accept-Ranges": "none",
}
_BODY: Final = 1024
_LARGEST: Final = 2**53 - 1
_JSON: Final = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]


def open_live(streams: Streams, settings: Settings, purgatories: Iterable[DelayedOperationPurgatory]) -> Live:
    """The statistics of these purgatories of a server."""
    store = streams.store if settings.database is not None else None
    return Live(settings.instance, *purgatories, store=store, demo=settings.demo)


def page_routes() -> list[BaseRoute]:
    """`/`, and its files."""
    files = PageFiles(directory=_FILES)

    async def index(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    return [Route("/", index), Mount("/page", files)]


class PageFiles(StaticFiles):
    """The page's files with their headers."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """The response with the file at `path`."""
        # They are short. A server need not know ranges (RFC 9110, 14.2), and the errors about them would not be JSON.
        scope["headers"] = [(name, value) for name, value in scope["headers"] if name != b"range"]
        response = await super().get_response(path, scope)
        response.headers.update(_HEADERS)
        return response


class PageEndpoint(Endpoint):
    """Answers `GET /v1/statistics?after=N` and `PUT /v1/demo`.

    The first one waits for snapshots that follow the one with the number N, the second one takes `{"pending": N}`.
    """

    def __init__(self, streams: Streams, settings: Settings, limits: Limits, live: Live) -> None:
        super().__init__(streams, settings, limits)
        self.live = live

    async def answer(self, scope: Scope, receive: Receive) -> Response:
        """The response to a request. Raises the reason of a refusal."""
        if scope["path"] == DEMO:
            _check_method(scope, "PUT")
            return await self._keep(scope, receive)
        _check_method(scope, "GET")
        operation = self.live.poll(_after(scope))
        return DelayedResponse(operation, self._render, key=_key)

    def _render(self, number: int) -> Reply:
        return Reply(200, _JSON, self.live.answer())

    async def _keep(self, scope: Scope, receive: Receive) -> Reply:
        if self.live.demo is None:
            raise Refusal(403, "demo traffic is off: start the server with --demo")
        with self.limits.memory.hold(scope["purgatory.client"]) as hold:
            body = await requests.body(receive, Headers(scope), _BODY, hold)
        try:
            given: Any = json.loads(body)
        except (ValueError, RecursionError):
            raise Invalid("the body must be JSON") from None
        pending = given.get("pending") if isinstance(given, dict) else None
        if type(pending) is not int or not 0 <= pending <= MAX_PENDING:
            raise Invalid(f"pending must be an integer from 0 to {MAX_PENDING}, not {str(pending)[:20]!r}")
        self.live.demo.keep(pending)
        return Reply(200, _JSON, json.dumps({"pending": pending}).encode())


def _after(scope: Scope) -> int | None:
    texts = requests.query(scope).get("after")
    if texts is None:
        return None
    text = texts[0]
    if not (text.isascii() and text.isdecimal() and len(text) <= 16) or int(text) > _LARGEST:
        raise Invalid(f"after must be an integer from 0 to {_LARGEST}, not {text[:20]!r}")
    return int(text)


def _key(number: int) -> int:
    """The key of a shared response: the number of the snapshot."""
    return number


def _check_method(scope: Scope, method: str) -> None:
    if scope["method"] != method:
        raise Refusal(405, f"method {scope['method']} is not allowed", [(b"allow", method.encode())])
