"""The description of the server at `/openapi.json`, in OpenAPI 3.1. A test compares it with the server's answers."""

from typing import Any, Final

from purgatory.streams.engine.demo import MAX_PENDING
from purgatory.streams.http.protocol import BODY_SECONDS, HEAD_SECONDS, MAX_HEAD_BYTES
from purgatory.streams.http.subscriptions import DEFAULT_LEASE, LEASE, MAX_NAME, MAX_STREAMS
from purgatory.streams.settings import Settings

__all__ = ["describe"]

Json = dict[str, Any]

_TEXT: Final = """
A server of the open protocol [Durable Streams](https://github.com/durable-streams/durable-streams). The specification
is `PROTOCOL.md` there.

**Follow a stream** by a read at `offset=-1`, and then always at the `Stream-Next-Offset` of the answer before; with
`live=long-poll` the answer waits for data for {long_poll:g} seconds at most, up to a sixteenth less at random. So each
byte, or message, is seen once and in order. Offsets are opaque, compare as strings, and are valid after a restart.

**A 2xx comes when the change is on the disk.** A `POST` of which the connection is lost may be stored, or not: with the
headers of an idempotent producer it can be repeated. **On a 429 or 503** come back after `Retry-After` seconds.
"""
_LARGEST: Final = 2**53 - 1
_OFFSET: Final = {"type": "string", "pattern": "^[0-9]{16}_[0-9]{16}$"}
_INTEGER: Final = {"type": "integer", "minimum": 0, "maximum": _LARGEST}
_STRING: Final = {"type": "string"}
_TRUE: Final = {"const": "true"}
_RETRY: Final = {
    "Retry-After": {"description": "Seconds until the next attempt.", "required": True, "schema": {"type": "integer"}}
}


def describe(settings: Settings, prefix: str = "") -> Json:
    """The description of a server with these settings, at the path `prefix`."""
    path = _parameter("path", "path", {"type": "string", "minLength": 1, "maxLength": 1024})
    path["description"] = (
        "The path may have more segments: `/v1/stream/a/b`. Paths that begin with `__ds` are reserved."
    )
    name = _parameter("path", "id", {"type": "string", "pattern": f"^[A-Za-z0-9_-]{{1,{MAX_NAME}}}$"})
    stream = {
        "parameters": [path],
        "put": _create(settings),
        "post": _append(settings),
        "get": _read(settings),
        "head": _head(),
        "delete": _operation(
            "deleteStream", "Delete a stream.", {"204": _said("The stream is deleted."), **_NO_STREAM}
        ),
        "options": _operation(
            "preflight", "The answer to a browser's preflight.", {"204": _said("The allowed methods and headers.")}
        ),
    }
    subscriptions = "/v1/stream/__ds/subscriptions/{id}"
    actions: dict[str, tuple[str, str, Json]] = {
        "claim": ("Claim a wake.", "200", {"worker": {"type": "string", "minLength": 1, "maxLength": MAX_NAME}}),
        "ack": ("Acknowledge offsets, and extend the lease.", "200", _WAKE),
        "callback": ("Acknowledge offsets, and extend the lease, as a webhook.", "200", _WAKE),
        "release": ("Give a wake back.", "204", _WAKE),
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Durable Streams",
            "version": "1",
            "summary": "Append-only streams over HTTP.",
            "description": _TEXT.format(long_poll=settings.long_poll_timeout).strip(),
        },
        **({"servers": [{"url": prefix}]} if prefix else {}),
        "paths": {
            "/v1/stream/{path}": stream,
            subscriptions: {
                "parameters": [name],
                "put": _subscribe(),
                "get": _operation("getSubscription", "Look at a subscription.", _looked("200")),
                "delete": _operation(
                    "unsubscribe",
                    "Delete a subscription.",
                    {"204": _said("The subscription is deleted, or did not exist.")},
                ),
            },
            f"{subscriptions}/streams": {"parameters": [name], "post": _link()},
            f"{subscriptions}/streams/{{path}}": {
                "parameters": [name, path],
                "delete": _operation("unlinkStream", "Remove a stream from a subscription.", _UNLINKED),
            },
            **{
                f"{subscriptions}/{action}": {"parameters": [name], "post": _act(action, *about)}
                for action, about in actions.items()
            },
            "/v1/stream/__ds/jwks.json": {
                "get": _get("keys", "The keys that sign webhooks.", "application/jwk-set+json")
            },
            "/v1/streams": {"get": _list()},
            "/v1/statistics": {"get": _statistics()},
            "/v1/demo": {"put": _demo()},
            "/": {"get": _get("page", "A page that shows the purgatory at work.", "text/html")},
            "/health": {"get": _get("health", "A health check that reads from the database.", "application/json")},
            "/metrics": {"get": _get("metrics", "Prometheus metrics.", "text/plain", "application/openmetrics-text")},
            "/openapi.json": {"get": _get("description", "This description.", "application/json")},
        },
        "components": {
            "schemas": {
                "Error": {
                    "type": "object",
                    "properties": {"error": {"type": "object", "required": ["message"]}},
                    "required": ["error"],
                }
            }
        },
    }


def _create(settings: Settings) -> Json:
    headers = [
        _header("Content-Type", _STRING, "The content type of the stream, and of each append."),
        _header("Stream-TTL", _INTEGER, "Seconds without a read or an append after which the stream is deleted."),
        _header(
            "Stream-Expires-At", {"type": "string", "format": "date-time"}, "The time at which the stream is deleted."
        ),
        _header("Stream-Closed", _STRING, "`true`: there will be no appends."),
        _header("Stream-Forked-From", _STRING, "The path of the source: the new stream is a fork of the source."),
        _header("Stream-Fork-Offset", _OFFSET, "The offset up to which the fork has the data of its source."),
        _header(
            "Stream-Fork-Sub-Offset", _INTEGER, "Bytes, or messages, behind `Stream-Fork-Offset` that the fork has too."
        ),
    ]
    answers = {
        "200": _said("The same stream exists already.", {"Stream-Next-Offset": _OFFSET}),
        "201": _said("The stream is created.", {"Stream-Next-Offset": _OFFSET, "Location": _STRING}),
        "404": _error("The source of the fork does not exist."),
        "409": _error("A different stream exists at the path, or the fork does not fit its source."),
        **_BODY,
        "403": _error(
            f"The limit of {settings.max_streams} streams is reached, or the request is from a page of another origin."
        ),
    }
    return {**_operation("createStream", "Create a stream.", answers, headers), "requestBody": _ANYTHING}


def _append(settings: Settings) -> Json:
    headers = [
        _header("Content-Type", _STRING, "The content type of the stream."),
        _header("Stream-Closed", _STRING, "`true`: this is the last append. Without a body, the stream is closed."),
        _header("Stream-Seq", _STRING, "A string that is greater than the `Stream-Seq` of the previous append."),
        _header("Producer-Id", _STRING, "The name of an idempotent producer, which also needs the next two headers."),
        _header("Producer-Epoch", _INTEGER, "A greater epoch fences earlier producers of this name."),
        _header("Producer-Seq", _INTEGER, "0, 1, 2, … in each epoch. A repetition is stored once."),
    ]
    answers = {
        "200": _said("The data is stored.", {"Stream-Next-Offset": _OFFSET, "Producer-Seq": _INTEGER}),
        "204": _said("The data is stored, by this request or by an earlier one.", {"Stream-Next-Offset": _OFFSET}),
        "409": _error("The stream is closed or has another content type, or the sequence number is out of order."),
        **_NO_STREAM,
        **_BODY,
        "403": _error("The producer has a later epoch, or the request is from a page of another origin."),
        "413": _error(f"The body is too long, or the stream would exceed {settings.max_units} bytes or messages."),
    }
    return {**_operation("append", "Append to a stream.", answers, headers), "requestBody": _ANYTHING}


def _read(settings: Settings) -> Json:
    parameters = [
        _query(
            "offset", {"type": "string", "pattern": "^(-1|now|0{16}_[0-9]{16})$"}, "-1 is the beginning, now the end."
        ),
        _query("live", {"enum": ["long-poll", "sse"]}, "`long-poll` waits for data; `sse` sends server-sent events."),
        _query("cursor", _STRING, "`Stream-Cursor` of the previous response, for caches."),
        _header("If-None-Match", _STRING, "The entity tag of an answer that the client has."),
    ]
    moved = {"Stream-Next-Offset": _OFFSET}
    answers = {
        "200": {
            **_said("The data behind the offset. A `control` event has the next offset.", {}),
            "content": {"*/*": {}},
        },
        "204": _said(f"No data was appended within {settings.long_poll_timeout:g} seconds.", moved),
        "304": _said("The client has this response already."),
        **_NO_STREAM,
    }
    return _operation("read", "Read a stream.", answers, parameters)


def _head() -> Json:
    answers = {
        "200": _said("The stream exists.", {"Stream-Next-Offset": _OFFSET}),
        **{status: _said(each["description"]) for status, each in {**_NO_STREAM, **_ANY}.items()},
    }
    return _operation("lookAtStream", "Look at a stream.", answers)


def _list() -> Json:
    parameters = [
        _query("prefix", _STRING, "The beginning of the paths."),
        _query("after", _STRING, "The last path of the previous response."),
        _query(
            "limit",
            {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100},
            "The greatest number of streams in the response.",
        ),
    ]
    return {
        **_get("listStreams", "Streams, in the order of their paths.", "application/json"),
        "parameters": parameters,
    }


def _statistics() -> Json:
    after = _query("after", _INTEGER, "The number of a snapshot: wait for one that follows it.")
    found = _get("statistics", "Snapshots of the purgatories of each worker.", "application/json")
    return {**found, "parameters": [after]}


def _demo() -> Json:
    pending = {"type": "integer", "minimum": 0, "maximum": MAX_PENDING}
    schema = {"type": "object", "properties": {"pending": pending}, "required": ["pending"]}
    answers = {
        "200": {"description": "The number is accepted.", "content": {"application/json": {"schema": schema}}},
        **_BODY,
        "403": _error("The server was started without `--demo`, or the request is from a page of another origin."),
    }
    return {**_operation("demo", "Set the number of demo operations.", answers), "requestBody": _body(schema)}


def _subscribe() -> Json:
    paths = {"type": "array", "items": _PATH, "minItems": 1, "maxItems": MAX_STREAMS}
    common = {
        "pattern": {"type": "string", "description": "Paths with `*` for a segment, or `**` for several."},
        "streams": paths,
        "lease_ttl_ms": {"type": "integer", "minimum": LEASE[0], "maximum": LEASE[1], "default": DEFAULT_LEASE},
        "description": {"type": "string", "maxLength": 4096},
    }
    webhook = {"type": "object", "properties": {"url": {"type": "string", "format": "uri"}}, "required": ["url"]}
    kinds = [
        {"type": {"const": "pull-wake"}, "wake_stream": _PATH, **common},
        {"type": {"const": "webhook"}, "webhook": webhook, **common},
    ]
    schemas = [
        {
            "type": "object",
            "properties": properties,
            "required": ["type", *(each for each in ("wake_stream", "webhook") if each in properties)],
            "anyOf": [{"required": ["pattern"]}, {"required": ["streams"]}],
        }
        for properties in kinds
    ]
    answers = {
        **_looked("200", "201"),
        "409": _error("The subscription exists already, with another configuration."),
        **_BODY,
    }
    answers["403"] = _error("The limit of subscriptions is reached, or the request is from a page of another origin.")
    return {**_operation("subscribe", "Create a subscription.", answers), "requestBody": _body({"anyOf": schemas})}


def _link() -> Json:
    paths = {"type": "array", "items": _PATH, "minItems": 1, "maxItems": MAX_STREAMS}
    schema = {"type": "object", "properties": {"streams": paths}, "required": ["streams"]}
    answers = {"204": _said("The streams are added."), "404": _error("There is no such subscription."), **_BODY}
    return {**_operation("linkStreams", "Add streams to a subscription.", answers), "requestBody": _body(schema)}


def _act(action: str, summary: str, status: str, properties: Json) -> Json:
    schema = {"type": "object", "properties": properties, "required": [name for name in properties if name != "acks"]}
    answers = {
        status: _said("The action is done."),
        "401": _error("The token is missing or wrong."),
        "404": _error("There is no such subscription."),
        "409": _error("The wake is over, another worker holds the wake, or an offset is not valid."),
        **_BODY,
    }
    if status == "200":
        answers["200"]["content"] = {"application/json": {"schema": {"type": "object"}}}
    return {**_operation(action, summary, answers), "requestBody": _body(schema)}


def _get(operation: str, summary: str, *kinds: str) -> Json:
    schema = {"type": "string" if kinds[0].startswith("text/") else "object"}
    content = {kind: {"schema": schema} for kind in kinds}
    return _operation(operation, summary, {"200": {"description": "The requested document.", "content": content}})


def _operation(name: str, summary: str, answers: Json, parameters: list[Json] | None = None) -> Json:
    return {
        "operationId": name,
        "summary": summary,
        "parameters": parameters or [],
        "responses": {**_ANY, **answers},
    }


def _looked(*statuses: str) -> Json:
    content = {"application/json": {"schema": {"type": "object"}}}
    found = {status: {"description": "The subscription.", "content": content} for status in statuses}
    return {**found, "404": _error("There is no such subscription.")}


def _said(description: str, headers: Json | None = None) -> Json:
    described = {name: {"required": True, "schema": schema} for name, schema in (headers or {}).items()}
    return {"description": description, **({"headers": described} if described else {})}


def _error(description: str, headers: Json | None = None) -> Json:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {"description": description, "content": content, **({"headers": headers} if headers else {})}


def _parameter(where: str, name: str, schema: Json) -> Json:
    return {"name": name, "in": where, "required": where == "path", "schema": schema}


def _query(name: str, schema: Json, description: str) -> Json:
    return {**_parameter("query", name, schema), "description": description}


def _header(name: str, schema: Json, description: str) -> Json:
    return {**_parameter("header", name, schema), "description": description}


def _body(schema: Json) -> Json:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


_PATH: Final = {"type": "string", "minLength": 1, "maxLength": 1024}
_WAKE: Final = {
    "wake_id": _STRING,
    "generation": {"type": "integer"},
    "acks": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"stream": _PATH, "offset": _OFFSET},
            "required": ["stream", "offset"],
        },
    },
}
_ANYTHING: Final = {"content": {"text/plain": {"schema": _STRING}, "application/json": {"schema": {}}}}
_ANY: Final = {
    "400": _error("The request is malformed; the error names the reason."),
    "403": _error("The request is from a page of another origin."),
    "408": _error(f"The headers did not come within {HEAD_SECONDS:g} seconds."),
    "429": _error("The client has reached its limit of requests.", _RETRY),
    "431": _error(f"The request line and the headers are longer than {MAX_HEAD_BYTES} bytes."),
    "500": _error("The database has failed."),
    "503": _error("The server is full, is shutting down, or cannot reach its database.", _RETRY),
}
_BODY: Final = {
    "408": _error(f"The headers did not come within {HEAD_SECONDS:g} seconds, or the body within {BODY_SECONDS:g}."),
    "413": _error("The body is too long."),
    "507": _error("The disk is full."),
}
_UNLINKED: Final = {
    "204": _said("The stream is removed, unless the pattern matches it."),
    "404": _error("There is no such subscription."),
}
_NO_STREAM: Final = {
    "404": _error("There is no such stream."),
    "410": _error("The stream is deleted; its data is kept for its forks."),
}
