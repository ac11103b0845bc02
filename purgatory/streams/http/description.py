"""The description of the server at `/openapi.json`, in OpenAPI 3.1. A test compares it with the server's answers."""

from typing import Any, Final

from purgatory.streams.demo import MAX_PENDING
from purgatory.streams.http.protocol import BODY_SECONDS, HEAD_SECONDS, MAX_HEAD_BYTES
from purgatory.streams.http.subscriptions import DEFAULT_LEASE, LEASE, MAX_NAME, MAX_STREAMS
from purgatory.streams.settings import Settings

__all__ = ["describe"]

Json = dict[str, Any]

_TEXT: Final = """
A server of the open protocol [Durable Streams](https://github.com/durable-streams/durable-streams): its `PROTOCOL.md`
has the whole of it.

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
_RETRY: Final = {"Retry-After": {"description": "Seconds.", "required": True, "schema": {"type": "integer"}}}


def describe(settings: Settings) -> Json:
    """The description of a server with these settings."""
    path = _parameter("path", "path", {"type": "string", "minLength": 1, "maxLength": 1024})
    path["description"] = "It may have further segments: `/v1/stream/a/b`. Paths that begin with `__ds` are reserved."
    name = _parameter("path", "id", {"type": "string", "pattern": f"^[A-Za-z0-9_-]{{1,{MAX_NAME}}}$"})
    stream = {
        "parameters": [path],
        "put": _create(settings),
        "post": _append(settings),
        "get": _read(settings),
        "head": _head(),
        "delete": _operation("deleteStream", "Delete a stream.", {"204": _said("It is deleted."), **_NO_STREAM}),
        "options": _operation("preflight", "The answer to a browser's preflight.", {"204": _said("It may.")}),
    }
    subscriptions = "/v1/stream/__ds/subscriptions/{id}"
    actions: dict[str, tuple[str, str, Json]] = {
        "claim": ("Claim a wake.", "200", {"worker": {"type": "string", "minLength": 1, "maxLength": MAX_NAME}}),
        "ack": ("Acknowledge offsets, and extend the lease.", "200", _WAKE),
        "callback": ("The same, for a webhook.", "200", _WAKE),
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
        "paths": {
            "/v1/stream/{path}": stream,
            subscriptions: {
                "parameters": [name],
                "put": _subscribe(),
                "get": _operation("getSubscription", "Look at a subscription.", _looked("200")),
                "delete": _operation("unsubscribe", "Delete a subscription.", {"204": _said("There is none.")}),
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
            "/health": {"get": _get("health", "Whether the database answers.", "application/json")},
            "/metrics": {"get": _get("metrics", "For Prometheus.", "text/plain", "application/openmetrics-text")},
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
        _header("Content-Type", _STRING, "Of the stream. Appends have to have it."),
        _header("Stream-TTL", _INTEGER, "Seconds without a read or an append after which the stream is deleted."),
        _header("Stream-Expires-At", {"type": "string", "format": "date-time"}, "The time at which it is deleted."),
        _header("Stream-Closed", _STRING, "`true`: there will be no appends."),
        _header("Stream-Forked-From", _STRING, "The path of a stream that this one begins with."),
        _header("Stream-Fork-Offset", _OFFSET, "The offset up to which it does."),
        _header("Stream-Fork-Sub-Offset", _INTEGER, "Bytes, or messages, behind that."),
    ]
    answers = {
        "200": _said("There was the same one.", {"Stream-Next-Offset": _OFFSET}),
        "201": _said("It is created.", {"Stream-Next-Offset": _OFFSET, "Location": _STRING}),
        "404": _error("There is no such stream to fork."),
        "409": _error("There is another stream, or the fork is not like its source."),
        **_BODY,
        "403": _error(f"There are {settings.max_streams} streams already; or a page of another origin has asked."),
    }
    return {**_operation("createStream", "Create a stream.", answers, headers), "requestBody": _ANYTHING}


def _append(settings: Settings) -> Json:
    headers = [
        _header("Content-Type", _STRING, "That of the stream."),
        _header("Stream-Closed", _STRING, "`true`: this is the last append. Without a body, the stream is closed."),
        _header("Stream-Seq", _STRING, "It must be greater than that of the append before."),
        _header("Producer-Id", _STRING, "The name of an idempotent producer. The next two belong to it."),
        _header("Producer-Epoch", _INTEGER, "A greater one fences the producers before."),
        _header("Producer-Seq", _INTEGER, "0, 1, 2, … in each epoch. A repetition is stored once."),
    ]
    answers = {
        "200": _said("It is stored.", {"Stream-Next-Offset": _OFFSET, "Producer-Seq": _INTEGER}),
        "204": _said("It is stored, or was before.", {"Stream-Next-Offset": _OFFSET}),
        "409": _error("The stream is closed or has another content type, or an append before is missing."),
        **_NO_STREAM,
        **_BODY,
        "403": _error("The producer's epoch is over; or a page of another origin has asked."),
        "413": _error(f"The body is too long, or the stream would exceed {settings.max_units} bytes or messages."),
    }
    return {**_operation("append", "Append to a stream.", answers, headers), "requestBody": _ANYTHING}


def _read(settings: Settings) -> Json:
    parameters = [
        _query(
            "offset", {"type": "string", "pattern": "^(-1|now|0{16}_[0-9]{16})$"}, "-1 is the beginning, now the end."
        ),
        _query("live", {"enum": ["long-poll", "sse"]}, "Wait for data; or get all of it as server-sent events."),
        _query("cursor", _STRING, "`Stream-Cursor` of the answer before, for caches."),
        _header("If-None-Match", _STRING, "The entity tag of an answer that the client has."),
    ]
    moved = {"Stream-Next-Offset": _OFFSET}
    answers = {
        "200": {**_said("The data behind the offset. Events have the offset in them.", {}), "content": {"*/*": {}}},
        "204": _said(f"There was no data for {settings.long_poll_timeout:g} seconds.", moved),
        "304": _said("The client has this answer already."),
        **_NO_STREAM,
    }
    return _operation("read", "Read a stream.", answers, parameters)


def _head() -> Json:
    answers = {
        "200": _said("It is there.", {"Stream-Next-Offset": _OFFSET}),
        **{status: _said(each["description"]) for status, each in {**_NO_STREAM, **_ANY}.items()},
    }
    return _operation("lookAtStream", "Look at a stream.", answers)


def _list() -> Json:
    parameters = [
        _query("prefix", _STRING, "Of their paths."),
        _query("after", _STRING, "The last path of the answer before."),
        _query("limit", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}, "Streams at most."),
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
        "200": {"description": "So it will be, in a moment.", "content": {"application/json": {"schema": schema}}},
        **_BODY,
        "403": _error("The server makes no demo traffic; or a page of another origin has asked."),
    }
    return {**_operation("demo", "Keep so many made-up operations waiting.", answers), "requestBody": _body(schema)}


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
    answers = {**_looked("200", "201"), "409": _error("There is another subscription with this id."), **_BODY}
    answers["403"] = _error("There are as many as there may be; or a page of another origin has asked.")
    return {**_operation("subscribe", "Create a subscription.", answers), "requestBody": _body({"anyOf": schemas})}


def _link() -> Json:
    paths = {"type": "array", "items": _PATH, "minItems": 1, "maxItems": MAX_STREAMS}
    schema = {"type": "object", "properties": {"streams": paths}, "required": ["streams"]}
    answers = {"204": _said("They are."), "404": _error("There is no such subscription."), **_BODY}
    return {**_operation("linkStreams", "Name streams in a subscription.", answers), "requestBody": _body(schema)}


def _act(action: str, summary: str, status: str, properties: Json) -> Json:
    schema = {"type": "object", "properties": properties, "required": [name for name in properties if name != "acks"]}
    answers = {
        status: _said("So it is."),
        "401": _error("The token is missing or wrong."),
        "404": _error("There is no such subscription."),
        "409": _error("The wake is over, or another worker has it."),
        **_BODY,
    }
    if status == "200":
        answers["200"]["content"] = {"application/json": {"schema": {"type": "object"}}}
    return {**_operation(action, summary, answers), "requestBody": _body(schema)}


def _get(operation: str, summary: str, *kinds: str) -> Json:
    schema = {"type": "string" if kinds[0].startswith("text/") else "object"}
    content = {kind: {"schema": schema} for kind in kinds}
    return _operation(operation, summary, {"200": {"description": "It.", "content": content}})


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
    return {**found, "404": _error("There is none.")}


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
    "400": _error("The request is wrong: the error says how."),
    "403": _error("A page of another origin has asked."),
    "408": _error(f"The headers did not come within {HEAD_SECONDS:g} seconds."),
    "429": _error("The client has as many requests as it may.", _RETRY),
    "431": _error(f"The request line and the headers are longer than {MAX_HEAD_BYTES} bytes."),
    "500": _error("The database has failed."),
    "503": _error("The server is full, is shutting down, or cannot reach its database.", _RETRY),
}
_BODY: Final = {
    "408": _error(f"The headers did not come within {HEAD_SECONDS:g} seconds, or the body within {BODY_SECONDS:g}."),
    "413": _error("The body is too long."),
    "507": _error("The disk is full."),
}
_UNLINKED: Final = {"204": _said("It is not in the subscription."), "404": _error("There is no such subscription.")}
_NO_STREAM: Final = {
    "404": _error("There is no such stream."),
    "410": _error("It is deleted, and kept for its forks alone."),
}
