"""The page's files, and what the browser is told to allow them, beside `guard`, which tells it of every answer."""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

DIRECTORY = Path(__file__).parent / "page"

HEADERS = {
    # Nothing but the page's own files and requests to this server; and no string becomes markup (Trusted Types).
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    # Kept, but asked for each time, by ETag: a new version of the server has a new page at once.
    "Cache-Control": "no-cache",
    "Accept-Ranges": "none",
}

METHODS = {"GET", "HEAD"}


class PageFiles(StaticFiles):
    """The files with their headers."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        # They are short. A server need not know ranges (RFC 9110, 14.2), and the errors about them would not be JSON.
        scope["headers"] = [(name, value) for name, value in scope["headers"] if name != b"range"]
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response


def routes() -> list[BaseRoute]:
    """`/`, and what it refers to."""
    files = PageFiles(directory=DIRECTORY)

    async def index(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    return [Route("/", index), Mount("/page", files)]
