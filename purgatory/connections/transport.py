"""The transport of a connection that can rest."""

import asyncio
import math
import os
import socket
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, Final

from purgatory.connections.watch import MANY, RETRY, SOON, Watch

Data = bytes | bytearray | memoryview

# The flags of a connection at rest come first, because Python shares small numbers.
_OLD: Final = 1
"""It has been cold twice: after its first data too."""
_RESTED: Final = 2
"""It has been cold: after the peer has come."""
_PAUSED: Final = 4
"""The protocol has paused reading."""
_ENDED: Final = 8
"""The peer has sent its end of file, which the protocol knows."""
_EOF: Final = 16
"""The protocol has called `write_eof`."""
_FULL: Final = 32
"""The protocol has been told to pause writing."""
_FIXED: Final = 64
"""It keeps the transport that it has."""
_CLOSING: Final = 128
_WARMING: Final = 256
"""The event loop makes a transport, to which the descriptor belongs."""
_COMING: Final = 512
"""The peer has sent something, for which the event loop makes a transport."""
_ABORTED: Final = 1024
_DUE: Final = 2048
"""It rests in the next iteration."""
_FORGOTTEN: Final = 4096
"""The others don't know it (any more)."""
_WRITTEN: Final = 8192
"""It gets a transport only because the socket has not taken what the protocol has written."""

_LIMITS: Final = (16_384, 65_536)
"""The limits of a new transport's buffer, of asyncio's loops and of uvloop."""

_LARGE: Final = 16_384
"""Bytes from which a piece is not copied, because many connections may get the same one."""

_NOBODY: Final = asyncio.Protocol()
"""The protocol of a transport that is given up."""


def can_replace(transport: asyncio.Transport) -> bool:
    """Return whether the event loop lets another protocol take over its transport."""
    try:
        transport.set_protocol(transport.get_protocol())
    except (AttributeError, NotImplementedError):
        return False
    return True


class QuietTransport(asyncio.Transport, asyncio.Protocol):
    """The transport of a connection, which gives up the event loop's own transport while nothing happens.

    It stays the same for as long as the connection, so that a protocol, a `StreamWriter` or anybody else may keep it.
    To the event loop's transport it is the protocol, and it passes everything on to the protocol of the connection.

    The connection is *warm* while it has a transport of the event loop, and *cold* while it has only a descriptor. Data
    from the peer makes it warm. So does data for the peer that the socket does not take at once, until that is sent.
    `start_tls` and `sendfile` of the event loop need the transport that `await warm()` returns.
    """

    # Few slots, because there are very many of these, so each boolean is a bit of `_flags`.
    __slots__ = ("_context", "_descriptor", "_flags", "_limits", "_protocol", "_transport", "_unsent", "_watch")

    def __init__(self, watch: Watch, transport: asyncio.Transport, context: Context | None) -> None:
        """Take the place of a transport. `QuietConnections.add` calls this."""
        self._watch: Watch = watch
        self._context: Context = copy_context() if context is None else context
        self._descriptor: int = -1
        self._flags: int = 0
        self._transport: asyncio.Transport | None = transport
        self._unsent: tuple[Data, ...] = ()
        """What is left for the next transport to send."""
        limits = transport.get_write_buffer_limits()
        if limits == watch.limits:
            limits = watch.limits  # the same tuple for all that have the same
        self._limits: tuple[int, int] = limits
        watch.limits = limits
        self._protocol: Any = None
        if watch.can_replace is None:
            watch.can_replace = can_replace(transport)
        if not watch.can_replace:
            self._flags |= _FIXED | _FORGOTTEN
            watch.warn_unable()
            return
        self._protocol = transport.get_protocol()
        transport.set_protocol(self._reader())
        own = transport.get_extra_info("socket")
        if own is not None:
            self._descriptor = own.fileno()
        watch.enter(self, self._descriptor)
        if own is None or own.type != socket.SOCK_STREAM or transport.get_extra_info("sslcontext") is not None:
            self._flags |= _FIXED  # TLS, a pipe
        if transport.get_write_buffer_size() > self._limits[1]:
            self._flags |= _FULL

    def __del__(self) -> None:
        if self.is_cold():  # the loop has ended before its connections
            os.close(self._descriptor)

    def __repr__(self) -> str:
        state = "closing" if self.is_closing() else "cold" if self.is_cold() else "warm"
        return f"<QuietTransport {state} protocol={type(self._protocol).__name__}>"

    # To rest, and to stop resting.

    def rest(self, after: float = 0.0) -> bool:
        """Give up the event loop's transport, as soon as there is nothing to write. The protocol notices nothing.

        A protocol calls this when it expects that nothing will happen for a while. If it is wrong, nothing is lost but
        the time to make a transport.

        Args:
            after: Seconds until then. Another call replaces this one. The first two times it is at most a twentieth
                of a second if there are many other connections that will rest: all peers may have come at once.

        Returns:
            Whether the connection can rest. With TLS and for a pipe it can't.

        Raises:
            ValueError: `after` is negative or not finite.
        """
        if not 0.0 <= after < math.inf:
            raise ValueError(f"after must be a finite number of seconds from 0.0, not {after!r}")
        self._flags &= ~_WRITTEN
        can_rest = not self._flags & (_FIXED | _CLOSING)
        if not can_rest or self.is_cold():
            return can_rest
        if after == 0.0:
            self._watch.idle.discard(self)
            self._flags |= _DUE
            self._watch.loop.call_soon(self._cool_now)
        else:
            self._flags &= ~_DUE
            is_early = not self._flags & _OLD and len(self._watch.idle) > MANY
            self._watch.idle.touch(self, min(after, SOON) if is_early else after)
        return True

    def stay(self) -> None:
        """Take back a call of `rest`, unless the connection is cold already."""
        self._flags &= ~(_DUE | _WRITTEN)
        self._watch.idle.discard(self)

    def is_cold(self) -> bool:
        """Return whether the connection rests."""
        return self._transport is None and self._descriptor >= 0 and not self._flags & _WARMING

    async def warm(self) -> asyncio.Transport:
        """Wait until the connection has a transport of the event loop, and return that.

        The connection does not rest before the next call of `rest`.

        Raises:
            ConnectionError: The connection is closed.
        """
        self.stay()
        if self.is_cold():
            self._warm()
        if self._flags & _WARMING:
            await self._watch.wait_for_transport(self)
        if self._transport is None or self.is_closing():
            raise ConnectionError("the connection is closed")
        return self._transport

    def detach(self) -> asyncio.Transport:
        """Give the event loop's transport back to the protocol, for example for `loop.start_tls`, and return it.

        Raises:
            RuntimeError: The connection is cold. `await warm()` first.
        """
        if self._transport is None:
            raise RuntimeError("the connection has no transport of the event loop: await warm() first")
        self._flags |= _FIXED
        if not self._flags & _FORGOTTEN:  # otherwise the event loop can't replace a protocol, and has not
            self._transport.set_protocol(self._protocol)
            self._forget()
        self._protocol = None  # it usually refers to this object, and both should be freed at once
        return self._transport

    def _cool_now(self) -> None:
        if self._flags & _DUE:
            self.cool()

    def cool(self) -> None:
        """Give up the transport, if there is nothing to do for it. Its peer notices nothing."""
        transport = self._transport
        if transport is None or self._flags & (_FIXED | _CLOSING) or transport.is_closing():
            return
        if transport.get_write_buffer_size():
            self._watch.idle.touch(self, RETRY)
            return
        try:
            descriptor = os.dup(transport.get_extra_info("socket").fileno())
            try:
                self._watch.cool(self, self._descriptor, descriptor, is_watched=self._is_watched())
            except BaseException:
                os.close(descriptor)
                raise
        except NotImplementedError:  # of a loop that cannot watch descriptors
            self._flags |= _FIXED
            self._watch.warn_unable()
            return
        except OSError as error:
            self._watch.warn_once("connections keep their transports, and take a kibibyte more: %s", error)
            self._watch.idle.touch(self, RETRY)  # a timer of the loop would not be taken back by stay()
            return
        self.stay()
        self._descriptor = descriptor
        self._flags |= _OLD if self._flags & _RESTED else _RESTED
        self._transport = None
        transport.set_protocol(_NOBODY)
        transport.abort()  # it closes its own descriptor

    def look(self) -> bool:
        """Look whether the peer of a cold connection has sent something or hung up, before the event loop does.

        Returns:
            Whether data comes to the protocol, as soon as there is a transport.
        """
        if not self.is_cold() or not self._is_watched():
            return bool(self._flags & _COMING)
        try:
            data = _Borrowed(fileno=self._descriptor).recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError as error:
            self._end(error)
            return False
        if data:
            self._flags |= _COMING
            self._warm()
            return True
        self._watch.pause(self._descriptor)
        self._flags |= _ENDED
        # Not at once, because the caller may run in the same context.
        self._watch.loop.call_soon(self._tell_end, context=self._context)
        return False

    def _tell_end(self) -> None:
        if self._flags & _CLOSING:
            return
        try:
            keeps_open = self._protocol.eof_received()
        except Exception as error:
            self._report("eof_received", error)
            self._fail(error)
        else:
            if not keeps_open:
                self.close()

    def _report(self, method: str, error: Exception) -> None:
        """Report what the protocol has raised, as the event loop's transports do."""
        fault = {"message": f"protocol.{method}() failed", "exception": error, "transport": self}
        self._watch.loop.call_exception_handler({**fault, "protocol": self._protocol})

    def _is_watched(self) -> bool:
        return not self._flags & (_PAUSED | _ENDED)

    def _warm(self) -> None:
        """Let the event loop make a transport, to which `connection_made` gives what has come up until then."""
        connection = socket.socket(fileno=self._descriptor)
        self._watch.warm(self._descriptor, is_watched=self._is_watched())
        self._flags |= _WARMING

        def failed(error: BaseException | None) -> None:
            if self._protocol is None:
                return  # it is lost already
            if self._transport is not None:  # that of uvloop is closed, and does not call connection_lost
                self._transport.set_protocol(_NOBODY)
                self._transport.abort()
            connection.close()
            self.connection_lost(error if isinstance(error, Exception) else None)

        self._watch.make(self._reader, connection, self._context, failed, self._pause)

    def _fail(self, error: Exception) -> None:
        if self.is_cold():
            self._end(error)
        else:
            self.abort()

    def _end(self, error: Exception | None) -> None:
        """Close a cold connection."""
        self._watch.warm(self._descriptor, is_watched=self._is_watched())
        self._watch.leave(self, self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
        self._flags |= _CLOSING
        self._watch.loop.call_soon(self.connection_lost, error, context=self._context)

    # As the protocol sees it.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As of the event loop's transport. While the connection is cold, there are only names and the socket."""
        if self._transport is not None:
            return self._transport.get_extra_info(name, default)
        if self._descriptor >= 0 and name in ("peername", "sockname", "socket"):
            own = _Borrowed(fileno=self._descriptor)
            with suppress(OSError):  # the peer has left
                return own if name == "socket" else own.getpeername() if name == "peername" else own.getsockname()
        return default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        if self._flags & _FORGOTTEN and self._transport is not None:  # after detach()
            self._transport.set_protocol(protocol)
            return
        self._protocol = protocol
        if self._transport is not None:
            self._transport.set_protocol(self._reader())

    def get_protocol(self) -> Any:
        if self._protocol is None and self._transport is not None:  # after detach()
            return self._transport.get_protocol()
        return self._protocol

    def is_closing(self) -> bool:
        if self._transport is not None:
            return self._transport.is_closing()
        return bool(self._flags & _CLOSING)

    def close(self) -> None:
        self._flags |= _CLOSING
        if self._transport is not None:
            self._transport.close()
        elif self.is_cold():
            self._end(None)

    def abort(self) -> None:
        self._flags |= _CLOSING | _ABORTED
        self._unsent = ()
        if self._transport is not None:
            self._transport.abort()
        elif self.is_cold():
            self._end(None)

    def is_reading(self) -> bool:
        # Not as the transport says, because that of uvloop reads only after connection_made.
        return not self._flags & _PAUSED and not self.is_closing()

    def pause_reading(self) -> None:
        if not self._flags & _PAUSED:
            if self.is_cold() and self._is_watched():
                self._watch.pause(self._descriptor)
            self._flags |= _PAUSED
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._flags & _PAUSED:
            self._flags &= ~_PAUSED
            if self.is_cold() and self._is_watched():
                self._watch.resume(self._descriptor)
        if self._transport is not None:
            self._transport.resume_reading()

    def write(self, data: Data) -> None:
        if self._flags & _EOF:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._transport is not None:
            self._transport.write(data)
            return
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__!r}")
        if self._flags & _CLOSING or not data:
            return
        sent = 0
        if self.is_cold():
            try:
                with suppress(BlockingIOError):
                    sent = os.write(self._descriptor, data)
            except OSError as error:
                self._end(error)
                return
            if sent == (data.nbytes if isinstance(data, memoryview) else len(data)):
                return
            self._flags |= _WRITTEN
            self._warm()
        # Not copied if it cannot change, because very many connections may get the same data.
        self._unsent = (*self._unsent, memoryview(data if isinstance(data, bytes) else bytes(data))[sent:])
        if self.get_write_buffer_size() > self._limits[1]:
            self.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        # Not by way of the transport's own, which in some releases of CPython 3.12 does not pause the writer.
        pieces = list(list_of_data)
        if max(map(len, pieces), default=0) < _LARGE:
            pieces = [b"".join(pieces)]
        for piece in pieces:
            self.write(piece)

    def can_write_eof(self) -> bool:
        return True if self._transport is None else self._transport.can_write_eof()

    def write_eof(self) -> None:
        if self._flags & (_EOF | _CLOSING):
            return
        self._flags |= _EOF
        if self._transport is not None:
            self._transport.write_eof()
        elif not self._unsent:  # otherwise it comes behind that
            with suppress(OSError):  # the peer has left, which will be noticed
                _Borrowed(fileno=self._descriptor).shutdown(socket.SHUT_WR)

    def get_write_buffer_size(self) -> int:
        if self._transport is not None:
            return self._transport.get_write_buffer_size()
        return sum(map(len, self._unsent))

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._limits if self._transport is None else self._transport.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high, low)
            self._limits = self._transport.get_write_buffer_limits()
            return
        if high is None:
            high = _LIMITS[1] if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._limits = (low, high)

    # As the event loop's transport sees it.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Hand everything to a new transport that has come up since the one before."""
        self._transport = transport
        self._flags &= ~_WARMING
        low, high = self._limits
        transport.set_write_buffer_limits(high, low)
        unsent, self._unsent = self._unsent, ()
        for part in unsent:
            transport.write(part)
        if unsent and self._flags & _EOF:
            transport.write_eof()
        if self._flags & _CLOSING:
            (transport.abort if self._flags & _ABORTED else transport.close)()
        self._pause()
        self._watch.has_transport(self)
        if self._flags & _WRITTEN:
            self.rest(SOON)
        # With more in its buffer, the transport itself will call back.
        if self._flags & _FULL and not transport.is_closing() and transport.get_write_buffer_size() <= high:
            self.resume_writing()

    def _pause(self) -> None:
        """Pause a new transport if the protocol reads nothing."""
        if self._transport is not None and not self._is_watched() and not self._transport.is_closing():
            self._transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self._flags &= ~_COMING
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        if self._flags & _ENDED:
            return True  # it is known, and the protocol has kept the connection
        self._flags |= _ENDED
        keeps_open: bool | None = self._protocol.eof_received()
        return keeps_open

    def pause_writing(self) -> None:
        if not self._flags & _FULL:
            self._flags |= _FULL
            try:
                self._protocol.pause_writing()
            except Exception as error:
                self._report("pause_writing", error)

    def resume_writing(self) -> None:
        self._flags &= ~_FULL
        try:
            self._protocol.resume_writing()
        except Exception as error:
            self._report("resume_writing", error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._flags |= _CLOSING
        self._forget()
        try:
            self._protocol.connection_lost(exc)
        finally:
            self._transport = self._protocol = None

    def _forget(self) -> None:
        self._flags |= _FORGOTTEN
        self._watch.forget(self, self._descriptor)
        self._descriptor = -1

    def _reader(self) -> asyncio.BaseProtocol:
        """Return the protocol for the event loop's transport."""
        return _Buffered(self) if isinstance(self._protocol, asyncio.BufferedProtocol) else self


class _Buffered(asyncio.BufferedProtocol):
    """The protocol of the event loop's transport if that of the connection brings its own buffer."""

    def __init__(self, quiet: QuietTransport) -> None:
        self._quiet = quiet

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._quiet.connection_made(transport)

    def eof_received(self) -> bool | None:
        return self._quiet.eof_received()

    def pause_writing(self) -> None:
        self._quiet.pause_writing()

    def resume_writing(self) -> None:
        self._quiet.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._quiet.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> Any:
        return self._quiet.get_protocol().get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._quiet._flags &= ~_COMING
        self._quiet.get_protocol().buffer_updated(nbytes)


class _Borrowed(socket.socket):
    """A socket whose descriptor belongs to somebody else."""

    def close(self) -> None:
        self.detach()

    def __del__(self) -> None:
        self.detach()
