"""The description of the server at `/openapi.json`: every path, parameter, bound and answer, in OpenAPI 3.1.

The bounds are those that the code checks, and tests compare the rest with what the server does.
"""

from dataclasses import fields
from typing import Any, Final

from examples.long_poll_server import demo, live, requests
from examples.long_poll_server.answers import MAX_RESPONSE_BYTES
from examples.long_poll_server.limits import JITTER, SHORT
from examples.long_poll_server.protocol import HEAD_SECONDS, MAX_HEAD_BYTES
from examples.long_poll_server.settings import Settings
from examples.long_poll_server.store import MAX_REPLICAS
from purgatory import PurgatoryStatistics

Json = dict[str, Any]

FOLLOWING: Final = """
A topic is a sequence of messages with the offsets 0, 1, 2, … It only grows: an offset that has been answered never
has another message, also after a restart, and there are no gaps.

**Follow it** by fetching at `offset=0`, and then always at the `next_offset` of the answer before. That is the offset
after the last message of the answer, or the one asked for if there is none: it never goes backwards, and all that lies
below it has been answered. So every message is seen once and in order. Store `next_offset` together with what you have
made of the messages, in one transaction: then each has had its effect exactly once, whatever fails. Repeat a fetch as
often as you like: it changes nothing (but that `replica` has said again where it is).

**An answer comes** as soon as `min_messages` follow `offset`, or else when `wait` seconds have passed, with what there
is then, be it nothing. An offset beyond the end waits likewise, unless `min_messages` is 0. An answer may have less
than `max_messages` although there are more, as it ends soon after {mebibytes} MiB: the next one goes on, at
`next_offset`.

**Waits** are {max_wait:g} seconds at the most on this server; longer ones are cut to that, not refused. From {short:g}
second on, a fetch waits up to a {part}th less than it was told to, at random, so that clients that came at once do not
come back at once. It never waits for longer: give your client's time-out a few seconds more than `wait`.

**The entity tag** of an answer names this log and the offsets of its messages; the same tag is the same answer. With
`If-None-Match` it is not sent again: 304. It still waits as ever. Answers are not to be stored by caches.

**On a 429 or 503** come back after `Retry-After` seconds. On a connection that is lost, do so after a pause that grows
with each attempt, and is random in part. A `POST` whose connection is lost may have been stored, or not;
so may one whose 503 says that.
"""


def describe(settings: Settings) -> Json:
    """The description of a server with these settings."""
    following = FOLLOWING.format(
        max_wait=settings.max_wait, short=SHORT, part=round(1 / JITTER), mebibytes=MAX_RESPONSE_BYTES // 2**20
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Long-poll server",
            "version": "1",
            "summary": "A small durable topic log over HTTP, with long polling.",
            "description": following.strip(),
        },
        "paths": {
            "/topics/{topic}/messages": {
                "parameters": [_TOPIC],
                "get": _fetch(settings),
                "post": _publish(settings),
            },
            f"/topics/{live.TOPIC}/messages": {"get": _fetch_live(settings), "post": _publish_live()},
            "/statistics": {"get": _statistics()},
            "/metrics": {"get": _metrics()},
            "/demo": {"put": _demo()},
            "/openapi.json": {"get": _get("This description.", {"application/json": {"schema": {"type": "object"}}})},
            "/": {"get": _get("A page to publish and watch topics with, and to see the purgatories.", _HTML)},
        },
        "components": {"schemas": _SCHEMAS},
    }


def _fetch(settings: Settings) -> Json:
    return {
        "operationId": "fetch",
        "summary": "Fetch messages, and wait for them.",
        "parameters": [*_range(settings), _REPLICA, _IF_NONE_MATCH],
        "responses": {
            "200": {"description": "The messages.", "headers": _TAGGED, "links": _NEXT, **_json("Page")},
            "304": {"description": "The client has this answer already.", "headers": _TAGGED},
            "404": _error("A topic of the server's own, which is not there."),
            "409": _error(f"The replica is ahead of the topic's end, or the topic has {MAX_REPLICAS} already."),
            **_WAITING,
            **_ANY,
        },
    }


def _fetch_live(settings: Settings) -> Json:
    return {
        "operationId": "fetchStatistics",
        "summary": "Follow the server's statistics.",
        "description": "Snapshots, made while a client waits for them. Only the last ones are kept: where `offset` is "
        "lower, the answer begins with the oldest, and where it is higher, with the next.",
        "parameters": _range(settings),
        "responses": {"200": {"description": "The snapshots.", **_json("Page")}, **_WAITING, **_ANY},
    }


def _publish_live() -> Json:
    refused = _error(f"Topics whose names begin with {live.RESERVED} are the server's own.")
    return {"operationId": "publishStatistics", "summary": "Refused.", "responses": {**_ANY, "403": refused}}


def _range(settings: Settings) -> list[Json]:
    return [
        _query("offset", _integer(0, requests.MAX_OFFSET, 0), "Of the first message wanted."),
        _query(
            "min_messages",
            _integer(0, requests.MAX_MESSAGES, 1),
            "Wait until there are so many from `offset` on. With 0 the answer comes at once.",
        ),
        _query("max_messages", _integer(1, requests.MAX_MESSAGES, 500), "Answer no more than so many."),
        _query("wait", _seconds(30), f"Seconds to wait, at the most. More than {settings.max_wait:g} is cut to that."),
    ]


def _publish(settings: Settings) -> Json:
    return {
        "operationId": "publish",
        "summary": "Publish a message.",
        "description": "The answer comes when the message is on disk and, with `acks`, when so many distinct replicas "
        "have it: a replica acknowledges all below the offset that it fetches at.",
        "parameters": [
            _query("acks", _integer(0, requests.MAX_ACKS, 0), "Wait for so many replicas."),
            _query(
                "timeout", _seconds(5), f"Seconds to wait for them. More than {settings.max_wait:g} is cut to that."
            ),
        ],
        "requestBody": {
            "required": True,
            "description": f"Up to {requests.MAX_BODY_BYTES} bytes. It is taken for JSON whatever its type says.",
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/NewMessage"}}},
        },
        "responses": {
            "201": {"description": "It is stored, and acknowledged.", "links": _ITSELF, **_json("Published")},
            "408": _error(f"The body did not come within {requests.BODY_SECONDS:g} seconds."),
            "413": _error("The body is too long."),
            "504": {
                "description": "It is stored, and too few replicas have acknowledged it in time.",
                **_json("NotAcknowledged"),
            },
            "507": _error("It is not stored: the disk is full."),
            **_WAITING,
            **_ANY,
            "403": _error(
                f"There are {settings.max_topics} topics, or {settings.max_messages} messages in this one, already; "
                f"or its name begins with {live.RESERVED}; or a page of another origin has sent this."
            ),
        },
    }


def _statistics() -> Json:
    return _get("The counts of each purgatory.", _json("Statistics")["content"])


def _metrics() -> Json:
    text = {"schema": {"type": "string"}}
    return _get("The same for Prometheus.", {"text/plain": text, "application/openmetrics-text": text})


def _demo() -> Json:
    return {
        "operationId": "demo",
        "summary": "Keep so many demo operations waiting, for the page to show.",
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Demo"}}},
        },
        "responses": {
            "200": {"description": "So it will be, in a moment.", **_json("Demo")},
            "413": _error("The body is too long."),
            "503": _error("The server reads as many bodies as it may.", retry=True),
            **_ANY,
            "403": _error("The server makes no demo traffic; or a page of another origin has sent this."),
        },
    }


def _get(summary: str, content: Json) -> Json:
    return {"summary": summary, "responses": {"200": {"description": "It.", "content": content}, **_ANY}}


def _json(schema: str) -> Json:
    return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}}


def _error(description: str, retry: bool = False) -> Json:
    headers = {"Retry-After": {"description": "Seconds.", "required": True, "schema": {"type": "integer"}}}
    return {"description": description, **({"headers": headers} if retry else {}), **_json("Error")}


def _query(name: str, schema: Json, description: str) -> Json:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _integer(least: int, most: int, default: int) -> Json:
    return {"type": "integer", "minimum": least, "maximum": most, "default": default}


def _seconds(default: float) -> Json:
    return {"type": "number", "minimum": 0, "default": default}


def _link(offset: str, description: str) -> Json:
    parameters = {"path.topic": "$request.path.topic", "query.offset": f"$response.body#/{offset}"}
    return {"operationId": "fetch", "parameters": parameters, "description": description}


def _object(**properties: Json) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_ANY: Final = {
    "400": _error("The request is wrong: the error says what is."),
    "403": _error("A page of another origin has sent this."),
    "408": _error(f"The headers did not come within {HEAD_SECONDS:g} seconds."),
    "431": _error(
        f"The request line and the headers are longer than {MAX_HEAD_BYTES} bytes, or the trailers too long."
    ),
}
"""Answers that any request may get."""

_WAITING: Final = {
    "429": _error("The client has as many waiting requests as it may, or publishes too fast.", retry=True),
    "503": _error(
        "The server has as many requests as it may, is shutting down, or cannot reach its database.", retry=True
    ),
}
"""And any that may wait."""

_NAME: Final = {"type": "string", "pattern": r"^(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}$"}
_TOPIC: Final = {
    "name": "topic",
    "in": "path",
    "required": True,
    "description": f"Those whose names begin with {live.RESERVED} are the server's own.",
    "schema": {"type": "string", "pattern": rf"^(?!{live.RESERVED}|\.{{1,2}}$)[A-Za-z0-9._-]{{1,249}}$"},
}
_REPLICA: Final = _query("replica", _NAME, "The follower's name: it acknowledges everything below `offset`.")
_IF_NONE_MATCH: Final = {
    "name": "If-None-Match",
    "in": "header",
    "description": "Entity tags of answers that the client has.",
    "schema": {"type": "string"},
}
_TAGGED: Final = {
    "ETag": {"description": "The same for the same answer.", "required": True, "schema": {"type": "string"}},
    "Cache-Control": {"required": True, "schema": {"const": "no-store"}},
}
_NEXT: Final = {"next": _link("next_offset", "The messages after these.")}
_ITSELF: Final = {"itself": _link("offset", "This message, and those after it.")}
_HTML: Final = {"text/html": {"schema": {"type": "string"}}}

_OFFSET: Final = {"type": "integer", "minimum": 0}
_TEXT: Final = {"type": "string"}
_TYPES: Final[dict[object, Json]] = {str: _TEXT, int: _OFFSET, float: {"type": "number", "minimum": 0}}
_SCHEMAS: Final[Json] = {
    "NewMessage": _object(value={"description": "Anything."}),
    "Message": _object(offset=_OFFSET, value={"description": "As it was published."}),
    "Page": _object(
        messages={"type": "array", "items": {"$ref": "#/components/schemas/Message"}},
        next_offset={**_OFFSET, "description": "Where to fetch next."},
    ),
    "Published": _object(topic=_TEXT, offset=_OFFSET),
    "NotAcknowledged": _object(error=_TEXT, topic=_TEXT, offset=_OFFSET),
    "Error": _object(error=_TEXT),
    "Demo": _object(pending=_integer(0, demo.MAX_PENDING, 0)),
    "Statistics": {
        "type": "object",
        "additionalProperties": _object(**{field.name: _TYPES[field.type] for field in fields(PurgatoryStatistics)}),
    },
}
