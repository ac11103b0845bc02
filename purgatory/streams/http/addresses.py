"""The addresses that webhooks may have: a server must not be made to call what only it can reach (SSRF)."""

from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from socket import AddressFamily
from typing import Final
from urllib.parse import urlsplit

from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

_UNICAST: Final = ip_network("2000::/3")
"""All addresses of IPv6 that are of the internet (RFC 4291, 2.4). Others are of no use, or of this network."""


class UrlRejected(Exception):
    """The URL of a webhook is not acceptable."""


def check_url(url: str, local: bool = False, own: Collection[int] = ()) -> None:
    """Raise `UrlRejected` unless this is https to a public host.

    With `local`, http to this machine is right too, but for the ports `own` of the server itself: a proxy's passwords
    would be passed by there.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        called = URL(url).raw_host
    except ValueError:
        raise UrlRejected("webhook.url must be a URL") from None
    if not host or len(url) > 2048 or not url.isprintable():
        raise UrlRejected("webhook.url must be a URL")
    if host != called:  # other letters may become an address
        raise UrlRejected("the host of webhook.url must be in ASCII, as in DNS")
    if parts.username is not None or parts.password is not None:
        raise UrlRejected("webhook.url must not have a password")
    address = _address(host)
    if parts.scheme == "http" and local:
        if host != "localhost" and not (isinstance(address, IPv4Address) and address.is_loopback):
            raise UrlRejected("webhook.url must be https, or http to localhost or 127.0.0.x")
        if (80 if port is None else port) in own:
            raise UrlRejected("webhook.url must not be this server's own port")
        return
    if parts.scheme != "https":
        more = ": to allow http to this machine, set local_webhooks (`purgatory serve`: --local-webhooks)"
        raise UrlRejected(f"webhook.url must be https{'' if local else more}")
    if host.rstrip(".").endswith("localhost") or (address is not None and not is_public(address)):
        raise UrlRejected("webhook.url must not point into a private network")
    if address is None and all(label.isdecimal() or label.startswith("0x") for label in host.rstrip(".").split(".")):
        raise UrlRejected("an IPv4 address in webhook.url must be four decimal numbers, such as 192.0.2.1")


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address is one of the public internet."""
    if isinstance(address, IPv6Address):
        if address not in _UNICAST and address.ipv4_mapped is None:
            return False
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is not None and not inner.is_global:
            return False
    return address.is_global and not address.is_multicast


class Resolver(AbstractResolver):
    """Finds the addresses of hosts, and refuses those that are not public.

    The address that was checked is the one that is called: a name cannot point elsewhere in between.
    """

    def __init__(self, resolver: AbstractResolver) -> None:
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: AddressFamily = AddressFamily.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        if host != "localhost":
            found = [each for each in found if is_public(ip_address(each["host"].partition("%")[0]))]
        if not found:
            raise OSError(f"{host} has no public address")
        return found

    async def close(self) -> None:
        await self._resolver.close()


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host.partition("%")[0])
    except ValueError:
        return None
