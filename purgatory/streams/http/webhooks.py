"""The delivery of wakes to webhooks."""

import asyncio
import json
import logging
from collections.abc import Collection
from functools import partial
from typing import Any, Final
from urllib.parse import quote, urlsplit
from weakref import WeakValueDictionary

import aiohttp

from purgatory.streams.core.subscriptions import Deliver, Delivered, Delivery
from purgatory.streams.engine.streams import Streams
from purgatory.streams.http.addresses import Resolver, UrlRejected, check_url
from purgatory.streams.http.keys import Keys
from purgatory.streams.http.requests import ROOT

_PATIENCE: Final = 10.0
"""Time limit of a delivery, in seconds."""
_ANSWER: Final = 64 * 1024
"""Largest response of a webhook that is parsed, in bytes."""
_AT_ONCE: Final = 16
"""Most deliveries to one receiver at one time. Each subscription has one, so their number is bounded by it."""

logger: Final = logging.getLogger("purgatory.streams")


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
        known = await self._streams.store.read(lambda database: database.subscription(name))
        if known is None or known.url is None:
            return
        async with self._slots.setdefault(urlsplit(known.url).netloc, asyncio.Semaphore(_AT_ONCE)):
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
