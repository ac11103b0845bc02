"""The endpoint of subscriptions, under the reserved path `__ds` (PROTOCOL.md, 6 and 7)."""

import json
import re
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope

from purgatory.streams.admission import SMALL, Hold, Limits, Refusal
from purgatory.streams.core import subscriptions as core
from purgatory.streams.core import wakes
from purgatory.streams.core.errors import Invalid
from purgatory.streams.core.globs import MAX_SEGMENTS, Glob
from purgatory.streams.core.state import Subscription
from purgatory.streams.core.transaction import Transaction
from purgatory.streams.engine.streams import Streams
from purgatory.streams.http import requests
from purgatory.streams.http.endpoint import Endpoint, check_method, refuse
from purgatory.streams.http.keys import Keys, TokenInvalid
from purgatory.streams.http.replies import Reply, error, json_reply
from purgatory.streams.http.requests import RESERVED, ROOT, Headers
from purgatory.streams.http.webhooks import UrlRejected, check_url
from purgatory.streams.settings import Settings
from purgatory.streams.storage.database import Database

CONTROL: Final = f"{ROOT}{RESERVED}"
_BODY: Final = 256 * 1024
"""Bytes of a body that names streams, at most."""
MAX_NAME: Final = 256
MAX_STREAMS: Final = 1_000
"""Streams in a request, at most."""
_LOOKED: Final = 1_000
"""Streams that are compared with a pattern at once: others read meanwhile."""
LEASE: Final = (1_000, 600_000)
DEFAULT_LEASE: Final = 30_000

_REFUSALS: Final[dict[type[Exception], tuple[int, str]]] = {
    core.SubscriptionNotFound: (404, "SUBSCRIPTION_NOT_FOUND"),
    core.AlreadyExists: (409, "SUBSCRIPTION_ALREADY_EXISTS"),
    core.Fenced: (409, "FENCED"),
    core.NoPendingWork: (409, "NO_PENDING_WORK"),
    core.InvalidOffset: (409, "INVALID_OFFSET"),
    core.TooManyLinks: (403, "TOO_MANY_STREAMS"),
    Invalid: (400, "INVALID_REQUEST"),
    UrlRejected: (400, "WEBHOOK_URL_REJECTED"),
}


class SubscriptionEndpoint(Endpoint):
    """Answers requests about subscriptions."""

    def __init__(self, streams: Streams, settings: Settings, limits: Limits, keys: Keys, own: set[int]) -> None:
        """With the ports `own` of this server, to which those of its requests are added."""
        super().__init__(streams, settings, limits)
        self.keys = keys
        self._own = own
        self._actions: dict[str, Callable[[Scope, Receive, str], Awaitable[Response]]] = {
            "streams": self._link,
            "claim": self._claim,
            "callback": partial(self._acknowledge, "webhook"),
            "ack": partial(self._acknowledge, "pull-wake"),
            "release": self._release,
        }

    def refusal(self, exception: Exception) -> Response | None:
        if isinstance(exception, core.AlreadyClaimed):
            holder, generation = exception.holder, exception.generation
            return error(409, str(exception), code="ALREADY_CLAIMED", current_holder=holder, generation=generation)
        if isinstance(exception, TokenInvalid):
            return error(401, str(exception), [(b"www-authenticate", b"Bearer")], code=exception.code)
        refusal = _REFUSALS.get(type(exception))
        if refusal is not None:
            return error(refusal[0], str(exception), code=refusal[1])
        return refuse(exception)

    async def answer(self, scope: Scope, receive: Receive) -> Response:
        _, port = scope.get("server") or (None, None)
        if port is not None:
            self._own.add(port)
        # By segments, as the path of a stream may have encoded slashes; no other part may.
        kind, *rest = requests.segments(scope)[len(CONTROL.split("/")) :] or [""]
        if any("/" in each for each in (kind, *rest[:2])):
            raise Invalid("the path has an encoded slash")
        if [kind, *rest] == ["jwks.json"]:
            check_method(scope, "GET")
            headers = [(b"content-type", b"application/jwk-set+json"), (b"cache-control", b"public, max-age=300")]
            return Reply(200, headers, json.dumps(self.keys.public).encode())
        if kind != "subscriptions" or not rest:
            raise Refusal(404, "the server has no resource at this path")
        name, *rest = rest
        if not 0 < len(name) <= MAX_NAME or "\0" in name:
            raise Invalid(f"a subscription's id must have 1 to {MAX_NAME} characters")
        if not rest:
            return await self._of_one(scope, receive, name)
        if rest[0] == "streams" and len(rest) > 1:
            check_method(scope, "DELETE")
            await self.streams.run(core.Unlink(name, requests.stream_path("/".join(rest[1:]).strip("/"))))
            return Reply(204)
        answer = self._actions.get("/".join(rest))
        if answer is None:
            raise Refusal(404, "a subscription has no resource at this path")
        check_method(scope, "POST")
        return await answer(scope, receive, name)

    async def _of_one(self, scope: Scope, receive: Receive, name: str) -> Response:
        check_method(scope, "GET", "PUT", "DELETE")
        if scope["method"] == "DELETE":
            await self.streams.run(core.Unsubscribe(name))
            return Reply(204)
        if scope["method"] == "GET":
            parameters = requests.query(scope)
            after = parameters.get("after", [""])[-1].replace("\0", "")
            look = core.Look(name, after, requests.page_limit(parameters))
            view = await self.streams.store.read(lambda database: look.apply(Transaction(database, 0.0)))
            return json_reply(200, self._shown(view))
        command = _subscribe(name, await self._body(scope, receive), self.settings, self._own)
        with self.limits.memory.hold(scope["purgatory.client"]) as hold:
            view = await self.streams.run(await self._with_matched(command, hold))
        return json_reply(201 if view.new else 200, self._shown(view))

    async def _with_matched(self, command: core.Subscribe, hold: Hold) -> core.Subscribe:
        """The command with the streams that its pattern matches: the writer looks at those alone that come meanwhile.

        Raises `TooManyLinks`, or `Refusal` if their paths take more memory than the client has.
        """
        if command.pattern is None:
            return command
        exists, last_id = await self.streams.store.read(
            lambda database: (database.subscription(command.id) is not None, database.last_id())
        )
        glob = Glob(command.pattern)
        matched: list[str] = []
        after: str | None = None if exists else ""
        while after is not None:
            look = partial(Database.matched, glob=glob, after=after, limit=_LOOKED)
            some, after = await self.streams.store.read(look)
            matched += some
            if len(matched) > wakes.MAX_LINKS:
                raise core.TooManyLinks
            hold.resize(sum(map(len, matched)))
        return replace(command, matched=matched, matched_until=last_id)

    def _shown(self, view: core.View) -> dict[str, Any]:
        subscription = view.subscription
        webhook = None
        if subscription.url is not None:
            jwks_url = f"{self.settings.url or ''}{CONTROL}/jwks.json"
            signing = {"alg": "ed25519", "kid": self.keys.id, "jwks_url": jwks_url}
            webhook = {"url": subscription.url, "signing": signing}
        return {
            "id": subscription.id,
            "subscription_id": subscription.id,
            "type": subscription.type,
            "pattern": subscription.pattern,
            "streams": [each.short() for each in view.streams],
            "stream_count": view.count,
            "webhook": webhook,
            "wake_stream": subscription.wake_stream,
            "lease_ttl_ms": round(1000 * subscription.lease),
            "created_at": _time(subscription),
            "status": "failed" if subscription.attempts else "active",
            "description": subscription.description,
        }

    async def _link(self, scope: Scope, receive: Receive, name: str) -> Response:
        await self.streams.run(core.LinkStreams(name, _streams(await self._body(scope, receive), "streams")))
        return Reply(204)

    async def _claim(self, scope: Scope, receive: Receive, name: str) -> Response:
        worker = (await self._body(scope, receive, SMALL)).get("worker")
        if not isinstance(worker, str) or not 0 < len(worker) <= MAX_NAME or not _is_text(worker):
            raise Invalid(f"worker must be a string of 1 to {MAX_NAME} characters")
        view = await self.streams.run(core.Claim(name, worker))
        answer = {
            "wake_id": view.subscription.wake,
            "generation": view.subscription.generation,
            "token": self.keys.token(view.subscription),
            "streams": [each.whole() for each in view.streams],
            "lease_ttl_ms": round(1000 * view.subscription.lease),
        }
        return json_reply(200, answer)

    async def _acknowledge(self, kind: str, scope: Scope, receive: Receive, name: str) -> Response:
        token = self._token(scope, name)
        given = await self._body(scope, receive)
        acks = given.get("acks", [])
        if not isinstance(acks, list) or len(acks) > MAX_STREAMS:
            raise Invalid(f"acks must be an array of at most {MAX_STREAMS} acks")
        pairs = []
        for ack in acks:
            path = ack.get("stream", ack.get("path")) if isinstance(ack, dict) else None
            if not isinstance(path, str) or not isinstance(ack.get("offset"), str):
                raise Invalid("an ack must have a stream and an offset")
            pairs.append((requests.stream_path(path.strip("/")), ack["offset"]))
        done = given.get("done", False)
        if not isinstance(done, bool):
            raise Invalid("done must be true or false")
        command = core.Acknowledge(name, kind, *_wake(given), token, tuple(pairs), done)
        return json_reply(200, {"ok": True, "next_wake": await self.streams.run(command)})

    async def _release(self, scope: Scope, receive: Receive, name: str) -> Response:
        token = self._token(scope, name)
        await self.streams.run(core.Release(name, "pull-wake", *_wake(await self._body(scope, receive, SMALL)), token))
        return Reply(204)

    async def _body(self, scope: Scope, receive: Receive, limit: int = _BODY) -> dict[str, Any]:
        given = await self.json_body(scope, receive, limit, default=b"{}")
        if not isinstance(given, dict):
            raise Invalid("the body must be a JSON object")
        return given

    def _token(self, scope: Scope, name: str) -> tuple[int, int]:
        kind, _, token = (Headers(scope).get(b"authorization") or "").partition(" ")
        if kind.lower() != "bearer" or not token:
            raise TokenInvalid("the header Authorization must have a bearer token")
        return self.keys.check(token.strip(), name)


def _streams(given: dict[str, Any], name: str) -> tuple[str, ...]:
    streams = given.get(name)
    if not isinstance(streams, list) or not streams or len(streams) > MAX_STREAMS:
        raise Invalid(f"{name} must be an array of 1 to {MAX_STREAMS} paths")
    if not all(isinstance(each, str) for each in streams):
        raise Invalid(f"{name} must have strings")
    return tuple(requests.stream_path(each.strip("/")) for each in streams)


def _text(given: dict[str, Any], name: str) -> str | None:
    value = given.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > 4096 or not _is_text(value):
        raise Invalid(f"{name} must be a string of at most 4096 characters")
    return value


def _is_text(text: str) -> bool:
    """Whether a database stores it: it has no NUL, and no halves of surrogate pairs, which JSON can have."""
    return re.search("[\0\ud800-\udfff]", text) is None


def _subscribe(name: str, given: dict[str, Any], settings: Settings, own: Collection[int]) -> core.Subscribe:
    kind = given.get("type")
    if kind not in ("webhook", "pull-wake"):
        raise Invalid(f"type must be webhook or pull-wake, not {str(kind)[:20]!r}")
    pattern = (_text(given, "pattern") or "").strip("/") or None
    if pattern is not None and Glob(pattern).num_segments > MAX_SEGMENTS:
        raise Invalid(f"a pattern must not have more than {MAX_SEGMENTS} segments")
    streams = _streams(given, "streams") if given.get("streams") else ()
    if pattern is None and not streams:
        raise Invalid("a subscription must have a pattern or streams")
    lease = given.get("lease_ttl_ms", DEFAULT_LEASE)
    if type(lease) is not int or not LEASE[0] <= lease <= LEASE[1]:
        raise Invalid(f"lease_ttl_ms must be an integer from {LEASE[0]} to {LEASE[1]}, not {str(lease)[:20]!r}")
    url = wake_stream = None
    if kind == "webhook":
        webhook = given.get("webhook")
        url = _text(webhook, "url") if isinstance(webhook, dict) else None
        if url is None:
            raise Invalid("a subscription of type webhook must have webhook.url")
        if settings.url is None:
            raise UrlRejected("webhooks need the public URL of this server: pass url to durable_streams")
        check_url(url, settings.local_webhooks, own)
    else:
        wake_stream = _text(given, "wake_stream")
        if wake_stream is None:
            raise Invalid("a subscription of type pull-wake must have wake_stream")
        wake_stream = requests.stream_path(wake_stream.strip("/"))
    return core.Subscribe(
        name,
        kind,
        pattern,
        streams,
        url,
        wake_stream,
        lease / 1000,
        _text(given, "description"),
        settings.max_subscriptions,
    )


def _wake(given: dict[str, Any]) -> tuple[str, int]:
    wake, generation = given.get("wake_id"), given.get("generation")
    if not isinstance(wake, str) or type(generation) is not int:
        raise Invalid("wake_id must be a string, and generation an integer")
    return wake, generation


def _time(subscription: Subscription) -> str:
    text = datetime.fromtimestamp(subscription.created, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
