"""The refusal of requests from pages of other sites."""

from collections.abc import Collection
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

from starlette.types import Scope

from purgatory.streams.http.limits import address
from purgatory.streams.http.replies import Refusal

__all__ = ["Guard"]

_FORWARDED: Final = frozenset((b"forwarded", b"x-forwarded-for", b"x-real-ip"))
"""Headers by which servers replace the address of a client."""


class Guard:
    """Refuses requests that a page of another origin has made, and those for a host that this server is not.

    A server on loopback has no password but that it is on loopback, and a browser there takes orders from any page.
    The browser says whose they are: in `Sec-Fetch-Site`, and older ones in `Origin`. Against a name of the page's own
    that is made to point here (DNS rebinding) helps that names have to be known. An address is no name.
    """

    def __init__(self, allowed_hosts: Collection[str] | None = (), allowed_origin: str | None = None) -> None:
        """Allow pages of `allowed_origin`, with `*` those of every origin.

        With `None` as `allowed_hosts`, a client that is connected from elsewhere may use any name: only a browser on
        this machine is past all that keeps others off. One behind a proxy may be that browser. A page can send such a
        header too, and uvicorn believes it, as it comes from this machine.
        """
        self._names = {"localhost", *(name.lower() for name in allowed_hosts or ())}
        self._trusts_remote = allowed_hosts is None
        self._origin = allowed_origin

    def check(self, scope: Scope) -> None:
        """Raise `Refusal` unless the request may be answered."""
        host = origin = site = destination = None
        forwarded = False
        for name, value in scope["headers"]:
            if name == b"host":
                if host is not None:
                    raise Refusal(400, "a request must not have more than one Host")
                host = value.decode("latin-1")
            elif name == b"origin":
                origin = value.decode("latin-1")
            elif name == b"sec-fetch-site":
                site = value
            elif name == b"sec-fetch-dest":
                destination = value
            elif name in _FORWARDED:
                forwarded = True
        if host is None and scope["http_version"] == "1.1":
            raise Refusal(400, "a request of HTTP/1.1 must have a Host")
        if (
            host is not None
            and not self._is_known(_name(host))
            and (forwarded or not self._trusts_remote or _is_local(scope))
        ):
            added = "add it to allowed_hosts (`purgatory serve`: --allowed-host)"
            raise Refusal(400, f"{_name(host)[:100]!r} is no host name of this server: {added}")
        if scope["method"] == "OPTIONS" or self._origin == "*" or (origin is not None and origin == self._origin):
            return
        if destination == b"document" and scope["path"] == "/":
            return  # a link to the page
        if site is not None:
            foreign = site not in (b"same-origin", b"none")
        else:
            foreign = origin is not None and origin.partition("://")[2].lower() != (host or "").lower()
        if foreign:
            allowed = "allowed_origin (`purgatory serve`: --allowed-origin) allows an origin"
            raise Refusal(403, f"pages of other origins may not use this server: {allowed}")

    def _is_known(self, name: str) -> bool:
        return name in self._names or "*" in self._names or _is_address(name)


def _name(host: str) -> str:
    """The host without its port, in lower case."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()


def _is_local(scope: Scope) -> bool:
    client = address(scope)
    if not client:
        return False  # it has come by a socket of files, or a test's client
    found = ip_address(client)
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


@lru_cache(256)
def _is_address(name: str) -> bool:
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
