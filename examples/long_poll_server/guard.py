"""The refusal of requests from pages of other sites."""

from collections.abc import Awaitable, Collection
from ipaddress import ip_address

from starlette.datastructures import Headers, QueryParams
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

HEADERS = [("X-Content-Type-Options", "nosniff"), ("Cross-Origin-Resource-Policy", "same-origin")]
"""Of every answer. There is none of those that would let other origins read it (CORS)."""


class Guard:
    """Refuses requests that a page of another origin has made, and those for a host that this server is not.

    A server on loopback has no password but that it is on loopback, and a browser there takes orders from any page.
    It says whose they are: in `Sec-Fetch-Site` (the Fetch Metadata policy of https://web.dev/articles/fetch-metadata,
    but for pages of the same site, which on loopback is every port), and older ones in `Origin`. Against a name of the
    page's own that is made to point here (DNS rebinding) helps that names have to be known. An address is no name.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: Collection[str] = ()) -> None:
        self.app = app
        self.names = {"localhost", *(name.lower() for name in allowed_hosts)}

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Not a coroutine function: what waits has no use for a frame more."""
        if scope["type"] == "http" and (refusal := self._refusal(scope, Headers(scope=scope))):
            status, error = refusal
            return JSONResponse({"error": error}, status)(scope, receive, send)
        return self.app(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host")
        # Without one came no browser: HTTP/1.1 has to have it.
        if host is not None and not self._is_known(host):
            return 400, f"this server is not {_name(host)[:100]!r}: its --allowed-host may say that it is"
        if _is_foreign(scope, headers, host):
            return 403, "pages of other origins may not use this server"
        return None

    def _is_known(self, host: str) -> bool:
        name = _name(host)
        return name in self.names or "*" in self.names or _is_address(name)


def _name(host: str) -> str:
    """Without the port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()


def _is_address(name: str) -> bool:
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _is_foreign(scope: Scope, headers: Headers, host: str | None) -> bool:
    site = headers.get("sec-fetch-site")
    if site is not None:
        followed_link = (
            scope["method"] == "GET"
            and not _acknowledges(scope)
            and headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") == "document"
        )
        return site not in {"same-origin", "none"} and not followed_link
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != (host or "").lower()


def _acknowledges(scope: Scope) -> bool:
    """As a replica, and so changes something although it is a GET."""
    return "replica" in QueryParams(scope["query_string"])
