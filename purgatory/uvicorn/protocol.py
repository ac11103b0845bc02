"""uvicorn's protocol of a connection, while there is a request to parse or to handle."""

import asyncio
import math
import os
from typing import Any, ClassVar, cast

from purgatory import Handle
from purgatory.asgi.interface import EXTENSION, ParkedApplication, Receive, Scope, Send
from purgatory.connections import QuietTransport
from purgatory.uvicorn.names import Config, HttpToolsProtocol, RequestResponseCycle, ServerState
from purgatory.uvicorn.parked import HELD, QuietConnection
from purgatory.uvicorn.sender import Sender
from purgatory.uvicorn.shared import Shared


def setting(name: str, default: float) -> float:
    """Return a number of seconds of the environment, which worker processes inherit."""
    text = os.environ.get(name, str(default))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds >= 0.0:
        raise ValueError(f"{name} must be a number of seconds, or inf for never, not {text!r}")
    return seconds


class ParkingProtocol(HttpToolsProtocol):
    """uvicorn's own httptools protocol, with the ASGI extension `purgatory.parking`.

    When a request is parked, or the connection has been idle for `settle_after` seconds, a small `QuietConnection`
    replaces this protocol (`transport.set_protocol`, as uvicorn does for a WebSocket). When data comes, a new one of
    these protocols replaces the `QuietConnection`.

        uvicorn.Server(uvicorn.Config(app, http=ParkingProtocol)).run()
    """

    settle_after: ClassVar[float] = 0.1
    """Seconds of idleness after which a connection drops its parser."""
    cool_after: ClassVar[float] = setting("PURGATORY_COOL_AFTER", 3.0)
    """Seconds after which a quiet connection is cold: it drops its transport, and takes a kibibyte less. If its client
    then sends something, it gets a new transport. Infinity means never."""
    tcp_keep_alive: ClassVar[float] = setting("PURGATORY_TCP_KEEP_ALIVE", 60.0)
    """Seconds without data after which the system asks whether the client is still there. If there is no answer for
    half of that time again, the connection is lost. Infinity means never."""
    first_request_timeout: ClassVar[float | None] = None
    """Seconds after which a connection without a request is closed. `None` means never, as with uvicorn alone."""
    most_behind: ClassVar[int | None] = None
    """The most bytes that may come behind a parked request. If there are more, none is kept, and the connection is
    closed after the answer, as a server may do (RFC 9112, 9.3.2). With `None`, reading pauses instead."""
    write_timeout: ClassVar[float] = 30.0
    """Seconds after which the client of a parked request is disconnected if it has read nothing of the response."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Keep what `take_over` needs. A new connection becomes quiet at once, so it gets no parser yet."""
        state: Any = server_state
        try:
            self.shared: Shared = state.purgatory
        except AttributeError:
            self.shared = state.purgatory = Shared(type(self), config, server_state, app_state)
        self._loop = _loop

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Become quiet until data comes, because after a deployment all clients connect at once."""
        self.shared.keep_alive(transport)
        if self.shared.can_replace(transport):
            quiet = QuietConnection(self.shared, self.shared.quiet.add(transport, context=self.shared.context))
            quiet.keep_alive_for(self.first_request_timeout)
            quiet.replace(self)
        else:
            self.take_over(transport)

    def take_over(self, transport: asyncio.Transport) -> None:
        """Begin to parse and to handle the requests of a connection, because data comes."""
        shared = self.shared
        super().__init__(shared.config, shared.server_state, shared.app_state, self._loop)
        del self.app  # the method takes its place
        self.settling: Handle | None = None
        """The call of `_settle`. There is none while it has found a request, until the response."""
        self.is_late: bool = False
        """Whether a request has waited to begin."""
        self.running: RequestResponseCycle | None = None
        """The request that the application handles. `cycle` is the last one that was parsed."""
        self.behind: bytes = b""
        """Data that has come while requests wait in the pipeline."""
        super().connection_made(transport)
        if shared.is_able:
            transport.set_protocol(self)

    def handle_websocket_upgrade(self) -> None:
        """Give the connection to another protocol, with the event loop's transport, because it won't be idle."""
        if self.transport.is_closing():
            return  # the client has left before this begins
        if isinstance(self.transport, QuietTransport):
            cast(HttpToolsProtocol, self).transport = self.transport.detach()
        super().handle_websocket_upgrade()
        self._let_go()

    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn tells only the last one that was parsed.
        for cycle in (self.running, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)
        # uvicorn cancels this only if `exc` is None (its #1604). After a reset the timer would keep the protocol and
        # the request until keep-alive ends: 7200 s and 2 GiB in https://github.com/Soju06/codex-lb/issues/2041.
        self._unset_keepalive_if_required()
        self._withdraw()
        self._let_go()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Close, but after the first step of a request's task if that has waited to begin."""
        cycle: RequestResponseCycle | None = self.cycle
        if not self.is_late or cycle is None or cycle.response_complete:
            return False
        self.loop.call_soon(self.transport.close)
        return True

    def data_received(self, data: bytes) -> None:
        """Parse data, or keep it while requests wait in the pipeline. Reading goes on, to see if the client leaves."""
        if self.pipeline:
            self.behind += data
        else:
            HttpToolsProtocol.data_received(self, data)
        if self.pipeline:
            self._read_behind()

    def _read_behind(self) -> None:
        """Read on behind requests in the pipeline, up to a limit. uvicorn pauses for the first of them."""
        if len(self.behind) < HELD:
            self.flow.resume_reading()
        else:
            self.flow.pause_reading()

    # These run for each request, so they avoid super() and calls of objects, which take a tenth of a microsecond.

    async def app(self, scope: Scope, receive: Receive, send: Send) -> object:
        """Run the application, and let it park the request."""
        sender = Sender(send)
        own = sender.send
        self.running = send.__self__  # type: ignore[attr-defined]
        extension = {"park": self.park, "send": own, "code": ParkingProtocol.app.__code__}
        if self.shared.is_able:
            scope["extensions"] = {EXTENSION: extension}
        try:
            result: object = await self.config.loaded_app(scope, receive, own)
        finally:
            if sender.quiet is not None and sender.quiet.listener is not None:
                sender.quiet.listener.returned()
            # Otherwise the scope and its headers would be in a cycle, and wait for the garbage collector.
            extension.clear()
        return result

    def on_response_complete(self) -> None:
        HttpToolsProtocol.on_response_complete(self)
        if self.pipeline:
            self._read_behind()
        elif self.behind and not self.transport.is_closing():
            behind, self.behind = self.behind, b""
            self.data_received(behind)
        if self.settling is None and self.timeout_keep_alive_task is not None and self.shared.is_able:
            self._settle_in(self.settle_after)

    def park(self, send: Send, listener: ParkedApplication) -> QuietConnection | None:
        """Park the request that is being handled, as the extension specifies. Return `None` if that is impossible."""
        cycle: RequestResponseCycle | None = self.cycle
        if (
            cycle is None
            or (sender := Sender.find(send, cycle)) is None
            or cycle.more_body
            or cycle.response_started
            or cycle.disconnected
            or self.pipeline
            or self.scope is not cycle.scope  # the parser has begun with the next request
            or self.transport.is_closing()
            or not isinstance(self.transport, QuietTransport)
        ):
            return None
        quiet = QuietConnection(self.shared, self.transport)
        quiet.park(cycle, listener)
        sender.park(quiet)
        # The application has nothing more to receive and to send, and uvicorn nothing to say about that.
        cycle.disconnected = True
        cycle.waiting_for_100_continue = False
        cycle.message_event.set()
        self._retire(quiet)
        if self.shared.is_stopping:
            self.loop.call_soon(quiet.shutdown)
        return quiet

    def shutdown(self) -> None:
        """Answer or close, because the server shuts down."""
        self.shared.is_stopping = True
        super().shutdown()

    def wait_for_more(self) -> None:
        """Begin keep-alive, unless a request or a WebSocket has come."""
        if self.cycle is None and self in self.connections:
            own = cast(HttpToolsProtocol, self)
            own.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
            self._settle_in(self.settle_after)

    def _settle_in(self, seconds: float) -> None:
        self.settling = self.shared.timer.call_later(seconds, self._settle, context=self.shared.context)

    def _settle(self) -> None:
        """Become quiet if the connection has been idle for `settle_after` seconds."""
        self.settling = None
        cycle: RequestResponseCycle | None = self.cycle
        if (
            self.scope is not (None if cycle is None else cycle.scope)  # the parser has begun with a request
            # The rest of a body that comes after its response is for this parser to skip.
            or (cycle is not None and (not cycle.response_complete or cycle.more_body))
            or self.flow.write_paused
            or self.transport.is_closing()
            or not isinstance(self.transport, QuietTransport)
        ):
            return
        keep_alive = self.first_request_timeout
        if self.timeout_keep_alive_task is not None:
            # uvicorn starts it at the end of a response, so it says how long the connection has been idle.
            # Only a call of uvloop's that comes within half a millisecond has no time.
            end: float = getattr(self.timeout_keep_alive_task, "when", self.loop.time)()
            keep_alive = end - self.loop.time()
            remaining = keep_alive - self.timeout_keep_alive + self.settle_after
            if remaining > 0.0:
                self._settle_in(remaining)
                return
        quiet = QuietConnection(self.shared, self.transport)
        quiet.keep_alive_for(keep_alive)
        self._retire(quiet)

    def _withdraw(self) -> None:
        """Remove the extension from the request's scope, because other code may keep the scope, and so this object."""
        if self.scope is not None:
            (self.scope.get("extensions") or {}).pop(EXTENSION, {}).clear()

    def _retire(self, quiet: QuietConnection) -> None:
        self._withdraw()
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        quiet.replace(self)
        self._let_go()

    def _let_go(self) -> None:
        """Drop the references to this object, so that it is freed without a garbage collection."""
        if self.settling is not None:
            self.settling.cancel()
        own: Any = cast(HttpToolsProtocol, self)
        own.settling = own.parser = own.cycle = own.running = own.scope = own.headers = None
