"""The page: its files, the statistics that it polls for, the demo traffic, and the list of streams."""

import json
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope

from purgatory.asgi import DelayedResponse
from purgatory.streams.admission import Limits, Refusal
from purgatory.streams.core.errors import Invalid
from purgatory.streams.engine.demo import MAX_PENDING
from purgatory.streams.engine.live import Live
from purgatory.streams.engine.streams import Streams
from purgatory.streams.http import requests
from purgatory.streams.http.endpoint import Endpoint, check_method
from purgatory.streams.http.replies import JSON, Reply, json_reply
from purgatory.streams.settings import Settings

STATISTICS: Final = "/v1/statistics"
DEMO: Final = "/v1/demo"
LIST: Final = "/v1/streams"
PATHS: Final = (STATISTICS, DEMO, LIST)
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
    """Answers `GET /v1/statistics?after=N`, `PUT /v1/demo` and `GET /v1/streams?prefix=&after=&limit=100`.

    The first one waits for snapshots that follow the one with the number N, the second one takes `{"pending": N}`, and
    the third one has streams in the order of their paths.
    """

    def __init__(self, streams: Streams, settings: Settings, limits: Limits, live: Live) -> None:
        super().__init__(streams, settings, limits)
        self.live = live

    async def answer(self, scope: Scope, receive: Receive) -> Response:
        if scope["path"] == LIST:
            check_method(scope, "GET", "HEAD")
            return await self._list(scope)
        if scope["path"] == DEMO:
            check_method(scope, "PUT")
            return await self._keep(scope, receive)
        check_method(scope, "GET")
        operation = self.live.poll(_after(scope))
        return DelayedResponse(operation, self._render, key=lambda number: number)

    def _render(self, number: int) -> Reply:
        return Reply(200, JSON, self.live.answer())

    async def _list(self, scope: Scope) -> Reply:
        parameters = requests.query(scope)
        limit = requests.page_limit(parameters)
        prefix, after = (parameters.get(name, [""])[-1].replace("\0", "") for name in ("prefix", "after"))
        streams = await self.streams.store.read(lambda database: database.listed(prefix, after, limit))
        shown = [
            {
                "path": each.path,
                "content_type": each.content_type,
                "next_offset": each.next_offset,
                "closed": each.closed,
                "ttl": each.ttl,
                "expires_at": each.deadline,
            }
            for each in streams
        ]
        return Reply(200, JSON, json.dumps({"streams": shown}, ensure_ascii=False, separators=(",", ":")).encode())

    async def _keep(self, scope: Scope, receive: Receive) -> Reply:
        if self.live.demo is None:
            raise Refusal(403, "demo traffic is off: start the server with --demo")
        given = await self.json_body(scope, receive, _BODY)
        pending = given.get("pending") if isinstance(given, dict) else None
        if type(pending) is not int or not 0 <= pending <= MAX_PENDING:
            raise Invalid(f"pending must be an integer from 0 to {MAX_PENDING}, not {str(pending)[:20]!r}")
        self.live.demo.keep(pending)
        return json_reply(200, {"pending": pending})


def _after(scope: Scope) -> int | None:
    texts = requests.query(scope).get("after")
    if texts is None:
        return None
    text = texts[0]
    if not (text.isascii() and text.isdecimal() and len(text) <= 16) or int(text) > _LARGEST:
        raise Invalid(f"after must be an integer from 0 to {_LARGEST}, not {text[:20]!r}")
    return int(text)
