"""The admission of requests: who may ask, how often, how much at once, and with how many bytes in memory.

A client is an address. Each limit is checked before the database is asked, and before anything is changed.
"""

import asyncio
import math
import random
from collections.abc import Callable, Collection, Iterable
from contextvars import ContextVar
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from sys import intern
from typing import Any, Final, Self

from purgatory import DelayedOperationPurgatory, IdleTracker
from purgatory.streams.settings import Settings

Scope = Any

RETRY: Final = (b"retry-after", b"1")
SMALL: Final = 4 * 1024
"""Bytes of a request that are not counted, so that a small one is never refused for lack of memory."""
SHORT: Final = 16 * 1024
"""The same for a response, of which the kernel takes at least as much."""
_HELD: Final = 96 * 1024 * 1024
_JITTER: Final = 1 / 16
_BRIEF: Final = 1.0
_FORWARDED: Final = frozenset((b"forwarded", b"x-forwarded-for", b"x-real-ip"))
"""Headers by which servers replace the address of a client."""
_LOOKED_AT: Final = frozenset((b"host", b"origin", b"sec-fetch-site", b"sec-fetch-dest", *_FORWARDED))
_DELAY: Final = 30.0
"""The longest delay in seconds. A client that would have to wait longer must come again."""
_DAY: Final = 86_400.0


current_client: Final[ContextVar[str]] = ContextVar("current_client", default="")
"""The address of the client whose request is being answered. The database serves clients in turn."""


class Refusal(Exception):
    """A request is refused, by the server and not by the protocol's core."""

    def __init__(self, status: int, message: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.headers = list(headers)


class TooManyRequests(Refusal):
    """The client has reached its limit of requests."""

    def __init__(self, message: str) -> None:
        super().__init__(429, message, [RETRY])


def address(client: tuple[str, int] | None) -> str:
    """Return the address of a scope's client, or "" if a proxy passed a text that is not an address.

    A network of IPv6 with a prefix of 64 bits is one address, because each of its machines has as many as it wants.
    """
    return "" if client is None else _counted(client[0])


@lru_cache(1024)
def _counted(host: str) -> str:
    found = _address(host)
    if isinstance(found, IPv6Address) and not found.is_loopback:
        found = ip_network((found, 64), strict=False).network_address
    return "" if found is None else intern(str(found))


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(host.partition("%")[0])  # also the zone may be anything
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def jittered(seconds: float, draw: Callable[[], float] = random.random) -> float:
    """Return a little less than `seconds`, so that readers that began to wait at once do not come back at once.

    It is less by up to a sixteenth, as with Consul's blocking queries. A time below a second stays as it is.
    """
    return seconds if seconds < _BRIEF else seconds * (1 - _JITTER * draw())


class Clients:
    """Counts requests by the address of their client."""

    def __init__(self, limit: int, what: str) -> None:
        """Refuse more than `limit` requests of a client, which are named `what` in the error."""
        self._limit = limit
        self._what = what
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        """Return the number of clients that have requests."""
        return len(self._counts)

    def check(self, address: str) -> None:
        """Raise `TooManyRequests` if the client has reached its limit."""
        if self._counts.get(address, 0) >= self._limit:
            raise TooManyRequests(f"the client has reached its limit of {self._limit} {self._what}")

    def enter(self, address: str) -> None:
        """Count a request, until `leave`."""
        self._counts[address] = self._counts.get(address, 0) + 1

    def leave(self, address: str) -> None:
        """Count the end of a request."""
        count = self._counts[address] - 1
        if count:
            self._counts[address] = count
        else:
            del self._counts[address]


class Budget:
    """The bytes that requests hold in memory, bounded for all together, and for each client by an eighth of that.

    So one client's stalled requests are no reason to refuse another's. What is small is neither counted nor refused.
    """

    def __init__(self, limit: int) -> None:
        """Let all requests hold `limit` bytes."""
        self._limit = limit
        self._shares: dict[str, int] = {}
        self.bytes = 0
        """Those that are held now."""

    def hold(self, client: str) -> "Hold":
        """Return an empty account for a request of the client."""
        return Hold(self, client)

    def check(self, client: str, more: int = 1) -> None:
        """Raise `Refusal` unless the client may hold `more` bytes."""
        share = self._limit // 8
        if self._shares.get(client, 0) + more > share:
            raise Refusal(429, f"the client has reached its limit of {share} bytes in memory", [RETRY])
        if self.bytes + more > self._limit:
            raise Refusal(503, f"the server has reached its limit of {self._limit} bytes in memory", [RETRY])

    def change(self, client: str, by: int) -> None:
        """Count `by` more bytes of the client."""
        self.bytes += by
        self._shares[client] = self._shares.get(client, 0) + by
        if not self._shares[client]:
            del self._shares[client]


class Hold:
    """The bytes that one request holds. Used as a context, it holds none in the end."""

    __slots__ = ("_budget", "_client", "_size")

    def __init__(self, budget: Budget, client: str) -> None:
        self._budget = budget
        self._client = client
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.count(0)

    def resize(self, size: int) -> None:
        """Hold `size` bytes from now on. Raises `Refusal`, and holds what it did, if those are too many."""
        if size > max(SMALL, self._size):
            self._budget.check(self._client, size - self._size)
        self.count(size)

    def count(self, size: int) -> None:
        """Hold `size` bytes from now on, which are there already."""
        size = size if size > SMALL else 0
        if size != self._size:
            self._budget.change(self._client, size - self._size)
            self._size = size


class Limits:
    """The counts of requests and bytes that the endpoints of a server share."""

    def __init__(self, settings: Settings) -> None:
        self.clients = Clients(settings.max_pending_client, "requests in progress")
        self.memory = Budget(max(_HELD, 8 * settings.max_body))
        """For what has come of requests, and for what is not taken of responses."""


class Quotas:
    """Delays the answers to a client, so that it does not append more than `rate` times a second.

    An append of a client that owes none is free. Each is due `1 / rate` seconds after the one before; a client may be
    ahead of that by a second. (The generic cell rate algorithm of ITU-T I.371, as virtual scheduling.) As in Kafka,
    the append is taken, and its answer waits. It belongs to one event loop.
    """

    def __init__(self, rate: float, max_pending: int) -> None:
        """Delay `max_pending` answers at most."""
        self.purgatory = DelayedOperationPurgatory("throttle", max_pending=max_pending)
        """The purgatory in which the answers wait."""
        self._rate = rate
        self._loop = asyncio.get_running_loop()
        self._due: dict[str, float] = {}
        # A client that is silent for so long has no delay any more: none is longer.
        self._clients = IdleTracker(2 * _DELAY + min(1 / rate, _DAY), self._due.pop)

    def __len__(self) -> int:
        """Return the number of clients that are remembered."""
        return len(self._due)

    def take(self, client: str) -> float:
        """Count an append. Return the time of the loop at which it may be answered.

        Raises `Refusal` if the client is too far ahead.
        """
        now = self._loop.time()
        next_due = max(now, self._due.get(client, 0.0)) + 1 / self._rate
        delay = max(0.0, next_due - now - 1.0) if self._due.get(client, 0.0) > now else 0.0
        if delay > _DELAY:
            after = (b"retry-after", b"%d" % math.ceil(delay - _DELAY))
            raise Refusal(429, f"a client must not append more than {self._rate:g} times a second", [after])
        self._due[client] = next_due
        self._clients.touch(client)
        return now + delay

    def close(self) -> None:
        """Forget all clients."""
        self._clients.close()


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
            if name not in _LOOKED_AT:
                continue
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
            else:
                forwarded = True
        if host is None and scope["http_version"] == "1.1":
            raise Refusal(400, "a request of HTTP/1.1 must have a Host")
        if (
            host is not None
            and not self._is_known(_name(host))
            and (forwarded or not self._trusts_remote or _is_local(scope))
        ):
            added = "add it to allowed_hosts (`purgatory serve`: --allowed-host)"
            raise Refusal(400, f"{_name(host)[:100]!r} is not a host name of this server: {added}")
        if scope["method"] == "OPTIONS" or self._origin == "*" or (origin is not None and origin == self._origin):
            return
        if destination == b"document" and scope["path"] == "/":
            return  # a link to the page
        if site is not None:
            foreign = site not in (b"same-origin", b"none")
        else:
            foreign = origin is not None and origin.partition("://")[2].lower() != (host or "").lower()
        if foreign:
            allowed = "allow one by allowed_origin (`purgatory serve`: --allowed-origin)"
            raise Refusal(403, f"pages of other origins may not use this server: {allowed}")

    def _is_known(self, name: str) -> bool:
        return name in self._names or "*" in self._names or _is_address(name)


@lru_cache(64)
def _name(host: str) -> str:
    """Return the host without its port, in lower case."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()


def _is_local(scope: Scope) -> bool:
    # It has none if it has come by a socket of files, or is a test's client.
    found = _address((scope.get("client") or ("", 0))[0])
    return found is not None and found.is_loopback


@lru_cache(256)
def _is_address(name: str) -> bool:
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
