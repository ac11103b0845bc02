"""The protocol of a connection: uvicorn's with parked requests, and with bounds on the bytes of a request."""

import asyncio
import json
import logging
import math
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, ClassVar, Final, NoReturn

import httptools

from purgatory.streams.admission import RETRY, SMALL, Budget, Hold, Refusal, address
from purgatory.uvicorn.names import RequestResponseCycle
from purgatory.uvicorn.parked import QuietConnection
from purgatory.uvicorn.protocol import ParkingProtocol

MAX_HEAD_BYTES: Final = 16 * 1024
"""Most bytes of the request line and the headers."""
MAX_HEADERS: Final = 200
"""Most headers of a request, and most trailers."""
MAX_TRAILER_BYTES: Final = 512 * 1024
"""Most bytes of the trailers. One read (256 KiB) may also have the end of the body, so the limit is greater."""
HEAD_SECONDS = 30.0
"""Seconds in which a head is complete, from its first byte on. A connection without a request is closed after them."""
BODY_SECONDS = 60.0
"""Seconds in which a body is complete, from the end of its head on."""
MAX_CHUNKS: Final = 4096
"""Most chunks of a body in one read (256 KiB): others wait while they are parsed."""
_LOGGED: Final = 10.0
"""Seconds in which one line of the log, at most, says that connections are refused."""
LINGER_SECONDS: Final = 2.0
"""Seconds for which the rest of a refused request is read and thrown away."""
_TOO_LARGE: Final = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
_HEAD_TOO_LONG: Final = f"the request line and the headers must not be longer than {MAX_HEAD_BYTES} bytes"

logger: Final = logging.getLogger("purgatory.streams")


class _RefusedError(Exception):
    """Stops httptools."""


class BoundedProtocol(ParkingProtocol):
    """A connection, while there is a request to parse or to handle.

    On its own, uvicorn takes a head of any length at any pace, trailers without end, and any number of requests behind
    the one that is being answered. Here the connection is closed after the first of several requests that come at once,
    as a server may do (RFC 9112, 9.3.2): no browser and no proxy sends more.
    """

    # Not in the dictionary: with more than thirty attributes it would take a KiB more.
    __slots__ = (
        "_body",
        "_coming",
        "_deadline",
        "_field_bytes",
        "_hold",
        "_in_body",
        "_in_head",
        "_is_deaf",
        "_num_trailers",
        "_refusal",
    )

    first_request_timeout: ClassVar[float | None] = HEAD_SECONDS
    most_behind: ClassVar[int | None] = MAX_HEAD_BYTES
    most_connections: ClassVar[int | None] = None
    """Most connections of the process, so that it has descriptors left for its database. More are refused."""
    memory: ClassVar[Budget | None] = None
    """For heads that are not complete."""
    refused: ClassVar[int] = 0
    """Connections that were refused so far."""
    _logged_at: ClassVar[float] = -math.inf

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._in_head = True
        self._in_body = False
        self._field_bytes = 0
        """Bytes of the head, or of the trailers, so far: below 0 while those at hand are of two requests."""
        self._coming = 0
        """Bytes that are being parsed."""
        self._body: list[bytes] = []
        """What these have of the body, by chunks."""
        self._num_trailers = 0
        self._is_deaf = False
        self._refusal = HTTPStatus.BAD_REQUEST, "the request must be HTTP"
        self._deadline: asyncio.TimerHandle | None = None
        self._hold: Hold | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # A response pauses when more of it is here than what is not counted.
        transport.set_write_buffer_limits(SMALL)
        if self.most_connections is None or len(self.shared.server_state.connections) < self.most_connections:
            super().connection_made(transport)
            return
        self.take_over(transport)
        BoundedProtocol.refused += 1
        now = self.loop.time()
        if now > BoundedProtocol._logged_at + _LOGGED:
            BoundedProtocol._logged_at = now
            logger.warning(
                "out of descriptors for connections: the process has %d and refuses more", self.most_connections
            )
        self._is_deaf = True
        self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "the server has too many connections", [RETRY])
        transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        self._coming = len(data)
        try:
            self._parse(data)
            if self._body:
                self._hand_over_body()
        except httptools.HttpParserError:
            self._body.clear()
            self._refuse(*self._refusal)
        if self._is_deaf:
            return
        self._field_bytes += len(data)
        if not self._in_head:
            if self._field_bytes > MAX_TRAILER_BYTES:
                text = f"the data behind the body must not be longer than {MAX_TRAILER_BYTES} bytes"
                self._refuse(_TOO_LARGE, text)
            elif self._in_body and self._deadline is None:
                self._deadline = self.loop.call_later(BODY_SECONDS, self._body_is_late)
        elif self._field_bytes > MAX_HEAD_BYTES:
            self._refuse(_TOO_LARGE, _HEAD_TOO_LONG)
        else:
            if self._deadline is None:
                self._deadline = self.loop.call_later(HEAD_SECONDS, self._head_is_late)
            if self._field_bytes > SMALL:
                self._hold_head()

    def _hold_head(self) -> None:
        """Count an incomplete head, for the address that is connected: nothing of it is believed yet."""
        if self.memory is None:
            return
        if self._hold is None:
            self._hold = self.memory.hold(address(self.client))
        try:
            self._hold.resize(self._field_bytes)
        except Refusal as refused:
            self._refuse(HTTPStatus(refused.status), str(refused), refused.headers)

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # There are no other protocols: it is a request like others. The parser has skipped its body, so the request
            # is parsed once more, without the header. Java's client sends one with each first request.
            (parsed,) = upgrade.args
            version = self.parser.get_http_version().encode()
            lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
            lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.feed_data(b"\r\n".join([*lines, b"", data[parsed:]]))

    def on_message_begin(self) -> None:
        # Not with any byte: one that begins no request, of a body that is not read, must not keep the connection.
        self._unset_keepalive_if_required()
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # Not by way of uvicorn's, which would cost as much again for each header.
        if not self._in_head:
            # Trailers are not read.
            self._num_trailers += 1
            if self._num_trailers > MAX_HEADERS:
                self._stop(_TOO_LARGE, f"a request must not have more than {MAX_HEADERS} trailers")
            return
        if len(self.headers) >= MAX_HEADERS:
            self._stop(_TOO_LARGE, f"a request must not have more than {MAX_HEADERS} headers")
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if _is_busy(self.cycle):
            raise _RefusedError
        is_short = 0 <= self._field_bytes <= MAX_HEAD_BYTES - self._coming
        if not is_short and self._head_bytes() > MAX_HEAD_BYTES:
            self._stop(_TOO_LARGE, _HEAD_TOO_LONG)
        if self.parser.get_method() == b"CONNECT":
            # To the parser it is an upgrade, with or without that header, however often it is parsed.
            self._stop(HTTPStatus.BAD_REQUEST, "CONNECT must be sent to a proxy, which this server is not")
        for name, value in self.headers:
            if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                self._stop(HTTPStatus.NOT_IMPLEMENTED, "Transfer-Encoding must be chunked")
        if self._is_upgrade():
            return
        self._unset_keepalive_if_required()  # it was set since, if this began before the last answer was complete
        super().on_headers_complete()
        # Not before: a target that is no URL, as of CONNECT, raises there, and the refusal is the answer to this head.
        self._in_head = False
        self._in_body = True
        self._field_bytes = self._num_trailers = 0
        self._forget_deadline()

    def on_message_complete(self) -> None:
        if self._is_upgrade():
            return
        if self._body:
            self._hand_over_body()
        self._in_body = False
        self._field_bytes = -self._coming
        self._forget_deadline()
        super().on_message_complete()

    def on_body(self, body: bytes) -> None:
        self._field_bytes = 0
        self._body.append(body)
        if len(self._body) > MAX_CHUNKS:
            text = f"the body came in more than {MAX_CHUNKS} chunks at once: send larger ones"
            self._stop(HTTPStatus.BAD_REQUEST, text)

    def _stop(self, status: HTTPStatus, error: str) -> NoReturn:
        """Refuse the request from within a callback of the parser."""
        self._refusal = status, error
        raise _RefusedError

    def _hand_over_body(self) -> None:
        # All at once, as uvicorn's cycle copies what it has for each piece.
        parts, self._body = self._body, []
        super().on_body(parts[0] if len(parts) == 1 else b"".join(parts))

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_body and self.cycle is not None:
            # The rest of the body is thrown away when it comes, if it comes: its head need not wait for it.
            own: Any = self
            own.scope = own.cycle.scope = {}
            own.headers = []

    def _is_upgrade(self) -> bool:
        return bool(self.parser.should_upgrade()) and any(name == b"upgrade" for name, _ in self.headers)

    def _head_bytes(self) -> int:
        # Each header with its colon, space and end of line.
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _refuse(self, status: HTTPStatus, error: str, more: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self._is_deaf = True
        self._forget_deadline()
        if self._in_head and _is_busy(self.cycle):
            # A second request, of which the first must not suffer.
            self.cycle.keep_alive = False
            return
        if _is_busy(self.cycle):
            # It is told that the client has gone, and writes nothing any more.
            self.cycle.disconnected = True
            self.cycle.waiting_for_100_continue = False
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.close()
                return
        if self._in_head or not self.cycle.response_complete:
            self._answer(status, error, more)
        # Closed now, with more of the request on its way, the client might not get to read this (RFC 9112, 9.6).
        self.transport.write_eof()
        self._deadline = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _head_is_late(self) -> None:
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"the headers did not come within {HEAD_SECONDS:g} seconds")

    def _body_is_late(self) -> None:
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"the body did not come within {BODY_SECONDS:g} seconds")

    def _retire(self, quiet: QuietConnection) -> None:
        self._forget_deadline()
        super()._retire(quiet)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._hold is not None:
            self._hold.count(0)

    def _answer(self, status: HTTPStatus, error: str, more: Sequence[tuple[bytes, bytes]] = ()) -> None:
        body = json.dumps({"error": {"message": error}}).encode()
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *more,
        ]
        lines = [b"HTTP/1.1 %d %s" % (status, status.phrase.encode()), *(b": ".join(header) for header in headers)]
        self.transport.write(b"\r\n".join([*lines, b"", body]))


def _is_busy(cycle: RequestResponseCycle | None) -> bool:
    return cycle is not None and not cycle.response_complete
