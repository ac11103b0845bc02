"""A connection without a request to parse or to handle: idle, or with a parked request."""

import asyncio
import logging
from typing import Any, Final

from purgatory import TimerTask
from purgatory.asgi.interface import Message, ParkedApplication
from purgatory.connections import QuietTransport
from purgatory.uvicorn.framing import CHUNKED, CLOSE, DEAF, DUE, HEAD, HTTP_1_0, PAUSED, STARTED, encode
from purgatory.uvicorn.names import RequestResponseCycle, get_local_addr, get_path_with_query_string
from purgatory.uvicorn.shared import Shared

logger: Final = logging.getLogger("uvicorn.error")

HELD: Final = 65_536
"""Bytes behind a parked request at which reading pauses."""


class _Deadline(TimerTask):
    """The end of keep-alive, or of the patience with a client that doesn't read. In fewer bytes than a handle."""

    __slots__ = ("_connection",)

    def __init__(self, connection: "QuietConnection") -> None:
        super().__init__()
        self._connection = connection

    def run(self) -> None:
        self._connection.end_wait()


class QuietConnection(asyncio.Protocol):
    """A connection that is idle or has a parked request, in few bytes."""

    # Few slots, because there are very many of these, so each boolean is a bit of `flags`.
    __slots__ = (
        "buffered",
        "client",
        "deadline",
        "flags",
        "held",
        "listener",
        "remaining",
        "request",
        "shared",
        "transport",
    )

    def __init__(self, shared: Shared, transport: QuietTransport) -> None:
        self.shared: Shared = shared
        self.transport: QuietTransport = transport
        self.flags: int = 0
        self.deadline: _Deadline | None = None
        self.buffered: int = 0
        """Bytes in the transport's buffer at the last look."""
        self.held: bytes = b""
        """Data that has come behind a parked request."""
        self.listener: ParkedApplication | None = None
        """The application's side of the parked request, until the last message."""
        self.remaining: int | None = None
        """Bytes of the body that the head of the response has promised and that were not sent yet."""
        self.client: tuple[str, int] | None = None
        """The client of the parked request, for the access log."""
        self.request: str | None = None
        """Method and path of the parked request, for the access log."""

    def park(self, cycle: RequestResponseCycle, listener: ParkedApplication) -> None:
        """Copy the parts of the request that its response needs."""
        scope = cycle.scope
        self.listener = listener
        if scope["method"] == "HEAD":
            self.flags |= HEAD
        if scope["http_version"] == "1.0":
            self.flags |= HTTP_1_0
        if not cycle.keep_alive:
            self.flags |= CLOSE
        if self.shared.access_logger is not None:
            self.client = scope["client"]
            self.request = f"{scope['method']} {get_path_with_query_string(scope)}"
        if cycle.flow.write_paused:
            self.pause_writing()

    def keep_alive_for(self, seconds: float | None) -> None:
        """Close the connection unless data comes in `seconds`."""
        timer = self.shared.timer
        if seconds is not None:
            self.deadline = self.deadline or _Deadline(self)
            timer.reschedule(self.deadline, timer.time() + seconds)
        elif self.deadline is not None:
            timer.cancel(self.deadline)
            self.deadline = None

    def replace(self, protocol: asyncio.Protocol) -> None:
        """Take the place of a protocol."""
        connections: Any = self.shared.server_state.connections
        connections.discard(protocol)
        connections.add(self)
        self.transport.set_protocol(self)
        self.rest()

    def rest(self) -> None:
        """Drop the transport after a while, unless a request has come."""
        if self.shared.cool_after is not None and not self.held and not self.flags & DEAF:
            self.transport.rest(self.shared.cool_after)

    # A parked request, as the application sees it.

    def send(self, *messages: Message) -> None:
        """Write messages of ASGI's `send`. Raise for wrong ones, before anything is written."""
        if self.transport.is_closing():
            return  # the client has disconnected
        if self.listener is None:
            raise RuntimeError("the response is complete")
        chunks: list[Any] = []  # objects with bytes
        flags, remaining, status, complete = self.flags, self.remaining, 0, False
        for message in messages:
            kind = message["type"]
            if kind == "http.response.start" and not flags & STARTED:
                status = message["status"]
                headers = [*self.shared.server_state.default_headers, *message.get("headers", ())]
                head, flags, remaining = encode(
                    status, tuple((bytes(name), bytes(value)) for name, value in headers), flags
                )
                chunks.append(head)
            elif kind == "http.response.body" and flags & STARTED and not complete:
                complete = not message.get("more_body", False)
                if flags & HEAD:
                    continue
                body = message.get("body", b"")
                if not isinstance(body, (bytes, bytearray, memoryview)):
                    raise TypeError(f"body must be bytes, not {body!r}")
                if remaining is not None:
                    remaining -= len(body)
                    if remaining < 0:
                        raise RuntimeError("Response content longer than Content-Length")
                    if complete and remaining:
                        raise RuntimeError("Response content shorter than Content-Length")
                if not flags & CHUNKED:
                    chunks.append(body)
                    continue
                if body:
                    chunks += (b"%x\r\n" % len(body), body, b"\r\n")
                if complete:
                    chunks.append(b"0\r\n\r\n")
            else:
                raise RuntimeError(f"Unexpected ASGI message {kind!r}.")
        self.flags, self.remaining = flags, remaining
        if status:
            self._log(status)
        self.transport.writelines(chunks)
        if self.flags & PAUSED:
            self.buffered = self.transport.get_write_buffer_size()
        if complete:
            self._completed()

    def close(self) -> None:
        """Close the connection without the rest of the response, if that is not complete."""
        if self.listener is not None:
            self.listener = None
            self._close()

    def _close(self) -> None:
        """Close the connection when the client has read everything, or else after the timeout."""
        self.transport.close()
        self.buffered = self.transport.get_write_buffer_size()
        if self.buffered:
            self.flags |= PAUSED
            self.keep_alive_for(self.shared.protocol_class.write_timeout)

    def _log(self, status: int) -> None:
        logger, request = self.shared.access_logger, self.request
        if logger is not None and request is not None:
            client = "" if self.client is None else f"{self.client[0]}:{self.client[1]}"
            version = "1.0" if self.flags & HTTP_1_0 else "1.1"
            logger.info('%s - "%s %s HTTP/%s" %d', client, *request.split(" ", 1), version, status)

    def _completed(self) -> None:
        self.listener = self.client = self.request = None
        self.shared.server_state.total_requests += 1
        if self.flags & CLOSE:
            self._close()
            return
        self.flags &= PAUSED
        if self.held:
            # Deferred, because the next request must not run in this one's context.
            self.shared.loop.call_soon(self._resume, context=self.shared.context)
        elif not self.flags:
            self.keep_alive_for(self.shared.config.timeout_keep_alive)

    # As uvicorn's server sees it.

    def shutdown(self) -> None:
        """Answer or close, because the server shuts down."""
        self.shared.is_stopping = True
        if self.listener is None:
            if self.begin() is None and not self._has_come():
                self._close()
            return
        self.flags |= CLOSE
        try:
            self.listener.shutdown()
        except Exception:
            logger.exception("a parked request cannot be answered at shutdown")
            self.close()

    # As the transport sees it.

    def data_received(self, data: bytes) -> None:
        self.transport.stay()
        if self.flags & DEAF:
            return
        if self.listener is None and not self.held:
            self.held = data
            self.flags |= DUE
            if not self.flags & PAUSED:
                self.keep_alive_for(None)  # it isn't idle any more
            self.shared.begin(self.begin)
            return
        limit = self.shared.protocol_class.most_behind
        if self.listener is not None and limit is not None and len(self.held) + len(data) > limit:
            self.flags |= CLOSE | DEAF
            self.held = b""
            return
        # Reading goes on for a while: else the client's disconnect would not be seen.
        self.held += data
        if len(self.held) >= HELD:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        """Begin with the request that has come, as it would have begun before the client ended its side."""
        if not self.flags & DUE or self.begin() is None:
            return False
        self.shared.loop.call_soon(self.transport.close)  # after the first step of the request's task
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if self.flags & DUE and self._has_addresses():
            self.flags &= ~DUE
            data, self.held = self.held, b""
            # As above: the request has come before the client has left.
            self.shared.loop.call_soon(self._wake(data).connection_lost, exc)
            return
        self._forget()
        listener, self.listener = self.listener, None
        if listener is not None:
            listener.disconnected()

    def _has_addresses(self) -> bool:
        """Return whether uvicorn can still ask for the addresses of a connection that is lost."""
        try:
            get_local_addr(self.transport)
        except OSError:  # zuvloop has closed the socket after a reset, so what has come of the request is dropped
            return False
        return True

    def pause_writing(self) -> None:
        if self.flags & PAUSED:
            return
        self.flags |= PAUSED
        self.buffered = self.transport.get_write_buffer_size()
        self.keep_alive_for(self.shared.protocol_class.write_timeout)
        if self.listener is not None:
            self.listener.pause_writing()

    def resume_writing(self) -> None:
        if not self.flags & PAUSED:
            return
        self.flags &= ~PAUSED
        self.rest()
        if self.listener is None:
            self.keep_alive_for(self.shared.config.timeout_keep_alive)
        else:
            self.keep_alive_for(None)
            self.listener.resume_writing()

    # As the timer sees it.

    def end_wait(self) -> None:
        """Close, unless a cold connection has something to read."""
        self.deadline = None
        if not self.flags & PAUSED:
            if not self._has_come():
                self._close()  # the end of keep-alive
            return
        buffered = self.transport.get_write_buffer_size()
        if buffered < self.buffered:
            self.buffered = buffered
            self.keep_alive_for(self.shared.protocol_class.write_timeout)
        else:
            self.transport.abort()

    def _has_come(self) -> bool:
        """Return whether a cold connection has something to read, for which it gets a transport."""
        return self.transport.look() and not self.transport.is_closing()

    def _resume(self) -> None:
        """Hand over the data that has come behind a request, after its answer."""
        protocol = self.begin()
        if protocol is not None:
            protocol.wait_for_more()

    def begin(self) -> Any:
        """Hand the data that has come to uvicorn's protocol, and return it. Return `None` if there is nothing to do."""
        if not self.held or self.transport.is_closing():
            return None
        is_due = bool(self.flags & DUE)
        self.flags &= ~DUE
        data, self.held = self.held, b""
        if len(data) >= HELD:
            self.transport.resume_reading()
        protocol = self._wake(data)
        protocol.is_late = is_due
        if self.shared.is_stopping:
            protocol.shutdown()
        return protocol

    def _wake(self, data: bytes) -> Any:
        """Let uvicorn's protocol replace this one."""
        shared = self.shared
        self._forget()
        protocol = shared.protocol_class(shared.config, shared.server_state, shared.app_state)
        protocol.take_over(self.transport)
        if self.flags & PAUSED:
            protocol.pause_writing()
        try:
            protocol.data_received(data)
        except Exception as error:  # not raised, because the transport that has called may be that of another one
            fault = {"message": "protocol.data_received() failed", "exception": error, "protocol": protocol}
            shared.loop.call_exception_handler(fault)
            self.transport.abort()
        return protocol

    def _forget(self) -> None:
        self.keep_alive_for(None)
        self.shared.server_state.connections.discard(self)
