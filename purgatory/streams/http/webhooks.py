"""The delivery of wakes to webhooks, and the addresses that these may have.

A server must not be made to call what only it can reach (SSRF).
"""

import asyncio
import json
import logging
from collections.abc import Collection
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from socket import AddressFamily
from typing import Any, Final
from urllib.parse import quote, urlsplit
from weakref import WeakValueDictionary

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from purgatory.streams.core.subscriptions import Deliver, Delivered, Delivery
from purgatory.streams.engine.streams import Streams
from purgatory.streams.http.keys import Keys
from purgatory.streams.http.requests import ROOT

_UNICAST: Final = ip_network("2000::/3")
"""All addresses of IPv6 that are of the internet (RFC 4291, 2.4). Others are of no use, or of this network."""
_PATIENCE: Final = 10.0
"""Time limit of a delivery, in seconds."""
_ANSWER: Final = 64 * 1024
"""Largest response of a webhook that is parsed, in bytes."""
_AT_ONCE: Final = 16
"""Most deliveries to one receiver at one time. Each subscription has one, so their number is bounded by it."""

logger: Final = logging.getLogger("purgatory.streams")


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


class Webhooks:
    """Calls the webhooks of subscriptions whose wake is due."""

    def __init__(self, streams: Streams, keys: Keys, url: str | None, local: bool, own: Collection[int] = ()) -> None:
        """Tell the webhooks that this server is at `url`. Without it, deliveries fail until a server has one.

        With `local`, they may be on this machine, but not at the ports `own`.
        """
        self._own = own
        self._local = local
        self._streams = streams
        self._keys = keys
        self._url = url
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """By receiver: one that does not answer delays no other."""
        self._session: aiohttp.ClientSession | None = None
        self._resolver: Resolver | None = None

    def due(self, names: Collection[str]) -> None:
        """Something is due for these subscriptions."""
        for name in names:
            if name in self._tasks:
                self._again.add(name)
            else:
                task = self._tasks[name] = asyncio.get_running_loop().create_task(self._deliver(name))
                task.add_done_callback(partial(self._ended, name))

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        del self._tasks[name]
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            logger.warning("the wake of %r is not delivered: %s", name, error)
        if name in self._again:
            self._again.discard(name)
            self.due([name])

    async def close(self) -> None:
        """Stop. Deliveries without an answer are made again by the next server."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._session is not None:
            await self._session.close()
        if self._resolver is not None:
            await self._resolver.close()

    async def _deliver(self, name: str) -> None:
        subscription = await self._streams.store.read(lambda database: database.subscription(name))
        if subscription is None or subscription.url is None:
            return
        async with self._slots.setdefault(urlsplit(subscription.url).netloc, asyncio.Semaphore(_AT_ONCE)):
            delivery = await self._streams.run(Deliver(name, _PATIENCE))
            if delivery is None:
                return
            subscription = delivery.view.subscription
            assert subscription.wake is not None
            try:
                done = await self._call(delivery)
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError, UrlRejected) as error:
                logger.warning("the webhook of %r failed, and is called again later: %s", name, error)
                await self._streams.run(Delivered(name, subscription.wake, False))
            else:
                await self._streams.run(Delivered(name, subscription.wake, True, done))

    async def _call(self, delivery: Delivery) -> bool:
        if self._url is None:
            raise ValueError("this server has no url that could be called back")
        subscription = delivery.view.subscription
        body = json.dumps(
            {
                "subscription_id": subscription.id,
                "wake_id": subscription.wake,
                "generation": subscription.generation,
                "streams": [each.whole() for each in delivery.view.streams],
                "callback_url": f"{self._url}{ROOT}__ds/subscriptions/{quote(subscription.id, safe='')}/callback",
                "callback_token": self._keys.token(subscription),
            }
        ).encode()
        headers = {"Content-Type": "application/json", "Webhook-Signature": self._keys.sign(body)}
        if self._session is None:
            # Not by threads: some tens of names that resolve slowly would take all of them.
            self._resolver = Resolver(aiohttp.AsyncResolver())
            connector = aiohttp.TCPConnector(resolver=self._resolver, use_dns_cache=False, limit=0)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(total=_PATIENCE), cookie_jar=aiohttp.DummyCookieJar()
            )
        assert subscription.url is not None
        check_url(subscription.url, self._local, self._own)
        async with self._session.post(subscription.url, data=body, headers=headers, allow_redirects=False) as response:
            if not 200 <= response.status < 300:
                raise ValueError(f"the receiver answered {response.status}")
            text = b""
            async for part in response.content.iter_any():
                text += part
                if len(text) > _ANSWER:
                    return False
        try:
            answer: Any = json.loads(text)
        except (ValueError, RecursionError):
            return False
        return isinstance(answer, dict) and answer.get("done") is True
