"""What a connection that rests takes, and what it does at its edges."""

import asyncio
import logging
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any, cast

import pytest
import trustme

from purgatory import PurgatoryMisuse
from purgatory.connections import QuietConnections, QuietTransport
from tests.connections.pair import Noting, Pair

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


@pytest.fixture
async def connections() -> QuietConnections:
    return QuietConnections()


@asynccontextmanager
async def connected(connections: QuietConnections, keeps_open: bool = False, tcp: bool = True) -> AsyncIterator[Pair]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        pair = await Pair.open(listener if tcp else None, connections, keeps_open, False)
        try:
            yield pair
        finally:
            pair.notes.transport.abort()
            pair.close(reset=True)
            while not pair.notes.lost and len(connections):
                await asyncio.sleep(0.001)


async def until_cold(pair: Pair) -> None:
    assert pair.quiet.rest()
    while not pair.quiet.is_cold():
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)  # until its transport is closed


async def until(pair: Pair, received: bytes) -> None:
    while pair.notes.received != received:
        await asyncio.sleep(0.001)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_cold_connection_has_one_descriptor_and_nothing_that_wakes_up(connections: QuietConnections) -> None:
    async with connected(connections) as pair:
        before = descriptors()
        await until_cold(pair)
        assert descriptors() == before + 1  # that of epoll
        assert (len(connections), connections.num_warm, connections.num_cold) == (1, 0, 1)
        assert connections.num_resting_soon == 0
        assert repr(connections) == "<QuietConnections warm=0 cold=1>"
        assert repr(pair.quiet) == "<QuietTransport cold protocol=Noting>"
        pair.send(3)
        await until(pair, b"\0\1\2")
        assert descriptors() == before
        assert repr(pair.quiet) == "<QuietTransport warm protocol=Noting>"


async def test_it_rests_after_its_time_and_not_before(connections: QuietConnections) -> None:
    async with connected(connections) as pair:
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert pair.quiet.rest(0.1)
        while not pair.quiet.is_cold():
            await asyncio.sleep(0.001)
        assert loop.time() - began >= 0.1 - 1e-6
        for wrong in (-1.0, float("inf"), float("nan")):
            with pytest.raises(ValueError, match="after must be a finite number"):
                pair.quiet.rest(wrong)


async def test_new_connections_rest_sooner_while_there_are_many(
    connections: QuietConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("purgatory.connections.transport.MANY", 1)
    async with connected(connections) as first, connected(connections) as second, connected(connections) as third:
        for pair in (first, second, third):
            pair.quiet.rest(60.0)
        for data in (b"\0", b"\0\1"):
            while not third.quiet.is_cold():
                await asyncio.sleep(0.001)
            assert connections.num_cold == 1
            third.send(1)
            await until(third, data)
            third.quiet.rest(60.0)
        await asyncio.sleep(0.2)
        assert connections.num_cold == 0


async def test_it_does_not_rest_while_there_is_something_to_write(connections: QuietConnections) -> None:
    connections = QuietConnections(rest_after=0.02)
    async with connected(connections) as pair:
        pair.quiet.write(b"x" * 400_000)
        pair.quiet.rest()
        await asyncio.sleep(0.1)
        assert not pair.quiet.is_cold()
        while not pair.quiet.is_cold():
            pair.take()
            await asyncio.sleep(0.001)
        assert pair.quiet.get_write_buffer_size() == 0
        while len(pair.read) < 400_000:
            pair.take()
            await asyncio.sleep(0.001)


async def test_it_rests_again_when_what_has_made_it_warm_is_sent(connections: QuietConnections) -> None:
    async with connected(connections) as pair, connected(connections) as other:
        for each in (pair, other):
            each.quiet.rest()
            while not each.quiet.is_cold():
                await asyncio.sleep(0.001)
            each.quiet.write(b"x" * 400_000)
        other.quiet.stay()
        while len(pair.read) < 400_000 or len(other.read) < 400_000:
            pair.take()
            other.take()
            await asyncio.sleep(0.001)
        while not pair.quiet.is_cold():
            await asyncio.sleep(0.01)
        assert connections.num_resting_soon == 0
        assert not other.quiet.is_cold()
        pair.send(10)
        while len(pair.notes.received) < 10:
            await asyncio.sleep(0.001)
        assert not pair.quiet.is_cold()


async def test_paused_connection_reads_nothing_while_it_writes(connections: QuietConnections) -> None:
    async with connected(connections) as pair:
        pair.quiet.pause_reading()
        await until_cold(pair)
        pair.send(5000)
        pair.quiet.write(b"x" * 400_000)
        while len(pair.read) < 400_000:
            await asyncio.sleep(0.001)
            pair.take()
        assert pair.notes.received == b""
        pair.quiet.resume_reading()
        while len(pair.notes.received) < 5000:
            await asyncio.sleep(0.001)


async def test_end_of_file_is_told_once_although_the_connection_gets_warm(connections: QuietConnections) -> None:
    async with connected(connections, keeps_open=True) as pair:
        await until_cold(pair)
        pair.half_close()
        while not pair.notes.ends:
            await asyncio.sleep(0.001)
        for _ in range(2):
            read = len(pair.read)
            pair.quiet.write(b"x" * 400_000)
            pair.quiet.pause_reading()
            pair.quiet.resume_reading()
            while len(pair.read) < read + 400_000:
                await asyncio.sleep(0.001)
                pair.take()
            pair.quiet.pause_reading()
            pair.quiet.resume_reading()
            await asyncio.sleep(0.01)
        pair.quiet.write_eof()
        while not pair.ending:
            await asyncio.sleep(0.001)
            pair.take()
        assert (pair.notes.ends, pair.notes.lost) == (1, [])


async def test_protocol_that_is_set_after_detach_is_the_loops(connections: QuietConnections) -> None:
    async with connected(connections) as pair:
        quiet = pair.quiet
        own = quiet.detach()
        after = Noting(False, None)
        quiet.set_protocol(after)
        assert own.get_protocol() is quiet.get_protocol() is after
        pair.send(10)
        while len(after.received) < 10:
            await asyncio.sleep(0.001)
        own.abort()
        while not after.lost:
            await asyncio.sleep(0.001)
        assert len(connections) == 0
        pair.notes.lost.append(None)


async def test_a_protocol_may_look_in_its_own_context(connections: QuietConnections) -> None:
    context = copy_context()
    async with connected(connections) as pair:
        pair.notes.transport = quiet = connections.add(pair.quiet.detach(), context=context)
        await until_cold(pair)
        pair.half_close()
        assert context.run(quiet.look) is False
        quiet.close()  # as a protocol may that looks for the last time
        while not pair.notes.lost:
            await asyncio.sleep(0.001)
        assert pair.notes.ends == 0


@pytest.mark.parametrize("tcp", [True, False])
async def test_cold_connection_answers_what_a_transport_is_asked(connections: QuietConnections, tcp: bool) -> None:
    async with connected(connections, tcp=tcp) as pair:
        names = "peername", "sockname"
        warm = [pair.quiet.get_extra_info(name) for name in names]
        await until_cold(pair)
        assert [pair.quiet.get_extra_info(name) for name in names] == warm
        own = pair.quiet.get_extra_info("socket")
        assert own.family == (socket.AF_INET if tcp else socket.AF_UNIX)
        own.close()
        del own  # its descriptor is not closed
        assert pair.quiet.get_extra_info("sslcontext", "nothing") == "nothing"
        assert pair.quiet.can_write_eof()
        assert pair.quiet.is_reading()
        assert pair.quiet.get_protocol() is pair.notes
        with pytest.raises(ValueError, match="must be >= low"):
            pair.quiet.set_write_buffer_limits(1, 2)
        with pytest.raises(TypeError, match="bytes-like object, not 'str'"):
            pair.quiet.write("text")  # type: ignore[arg-type]
        pair.quiet.write(b"")
        pair.quiet.write(memoryview(b"abcdefgh").cast("I"))
        pair.take()
        assert pair.read == b"abcdefgh"
        pair.close(reset=False)
        await asyncio.sleep(0.05)
        assert pair.quiet.get_extra_info("peername", "nobody") == "nobody"


async def test_paused_connection_uses_no_cpu_while_data_waits(connections: QuietConnections) -> None:
    async with connected(connections) as pair:
        await until_cold(pair)
        pair.quiet.pause_reading()
        pair.send(10)
        before = os.times()
        await asyncio.sleep(0.3)
        after = os.times()
        assert after.user + after.system - before.user - before.system < 0.15
        assert pair.notes.received == b""
        pair.quiet.resume_reading()
        await until(pair, bytes(range(10)))


async def test_end_of_file_leaves_the_half_of_a_protocol_that_keeps_it(connections: QuietConnections) -> None:
    async with connected(connections, keeps_open=True) as pair:
        await until_cold(pair)
        pair.half_close()
        while not pair.notes.ends:
            await asyncio.sleep(0.001)
        before = os.times()
        await asyncio.sleep(0.3)
        after = os.times()
        assert after.user + after.system - before.user - before.system < 0.15
        assert pair.quiet.is_cold()
        pair.quiet.write(b"still here")
        pair.quiet.write_eof()
        pair.take()
        assert (bytes(pair.read), pair.ending) == (b"still here", "end")


async def test_a_protocol_that_fails_at_the_end_of_file_is_reported_and_lost(connections: QuietConnections) -> None:
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))
    async with connected(connections) as pair:
        await until_cold(pair)
        pair.notes.eof_received = lambda: 1 // 0 > 0  # type: ignore[method-assign]
        pair.half_close()
        await connections.wait_closed()
        assert [type(error) for error in pair.notes.lost] == [ZeroDivisionError]
        assert [report["message"] for report in reports] == ["protocol.eof_received() failed"]


async def test_a_protocol_that_fails_to_pause_and_to_resume_is_reported(
    connections: QuietConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context["message"]))
    async with connected(connections) as pair:
        pair.notes.is_full = True  # so that both fail
        monkeypatch.setattr(pair.notes, "resume_writing", pair.notes.pause_writing)
        await until_cold(pair)
        pair.quiet.set_write_buffer_limits(0)
        pair.quiet.write(b"x" * 400_000)
        while len(pair.read) < 400_000:
            pair.take()
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        assert reports == ["protocol.pause_writing() failed", "protocol.resume_writing() failed"]


async def test_protocol_can_be_replaced_while_it_is_cold(connections: QuietConnections) -> None:
    async with connected(connections) as pair:
        await until_cold(pair)
        other = Noting(False, None)
        pair.quiet.set_protocol(other)
        pair.send(3)
        while other.received != b"\0\1\2":
            await asyncio.sleep(0.001)
        assert pair.notes.received == b""
        await asyncio.sleep(0)
        pair.quiet.set_protocol(pair.notes)
        pair.send(1)
        await until(pair, b"\3")


async def test_context_of_a_connection_remains(connections: QuietConnections) -> None:
    name: ContextVar[str] = ContextVar("name")
    seen: list[tuple[str, str | None]] = []

    class Named(Noting):
        def data_received(self, data: bytes) -> None:
            seen.append(("data", name.get(None)))

        def eof_received(self) -> bool:
            seen.append(("end", name.get(None)))
            return False

        def connection_lost(self, exc: Exception | None) -> None:
            seen.append(("lost", name.get(None)))

    loop = asyncio.get_running_loop()
    peers: list[socket.socket] = []
    for each in ("a", "b"):
        own, peer = socket.socketpair()
        own.setblocking(False)
        name.set(each)
        await loop.connect_accepted_socket(lambda: Named(False, connections), own)
        peers.append(peer)
    name.set("other")
    for member in connections._watch.members():
        member.rest()
    while connections.num_cold < 2:
        await asyncio.sleep(0)
    for peer in peers:
        peer.send(b"x")
        await asyncio.sleep(0.05)
    for member in connections._watch.members():
        member.rest()
    while connections.num_cold < 2:
        await asyncio.sleep(0)
    for peer in peers:
        peer.close()
        await asyncio.sleep(0.05)
    assert seen == [("data", "a"), ("data", "b"), ("end", "a"), ("lost", "a"), ("end", "b"), ("lost", "b")]


async def test_start_tls_and_sendfile_take_the_transport_that_warm_returns(
    connections: QuietConnections, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"content" * 1000)
    authority = trustme.CA()
    own, peers = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(own)
    authority.configure_trust(peers)
    loop = asyncio.get_running_loop()
    async with connected(connections) as pair:
        await until_cold(pair)
        with pytest.raises(RuntimeError, match=r"await warm\(\) first"):
            pair.quiet.detach()
        transport = await pair.quiet.warm()
        assert await pair.quiet.warm() is transport
        if isinstance(loop, asyncio.BaseEventLoop):  # uvloop has no sendfile
            with (tmp_path / "file").open("rb") as file:
                sending = asyncio.ensure_future(loop.sendfile(transport, file))
                while not sending.done():
                    pair.take()
                    await asyncio.sleep(0.001)
            pair.take()
            assert pair.read == b"content" * 1000
        assert pair.quiet.detach() is transport
        assert len(connections) == 0
        assert not pair.quiet.rest()
        reader, writer = asyncio.StreamReader(), asyncio.StreamReader()
        answering = asyncio.ensure_future(loop.start_tls(transport, pair.notes, own, server_side=True))
        peer, _ = await loop.connect_accepted_socket(lambda: asyncio.StreamReaderProtocol(reader), pair.peer)
        client = await loop.start_tls(peer, asyncio.StreamReaderProtocol(writer), peers, server_hostname="localhost")
        assert client is not None
        client.write(b"secret")
        await until(pair, b"secret")
        tls = await answering
        assert tls is not None
        tls.abort()
        client.abort()
        pair.is_open = False
        while not pair.notes.lost:
            await asyncio.sleep(0.001)


async def test_warm_raises_for_a_connection_that_is_closed(connections: QuietConnections) -> None:
    async with connected(connections) as pair:
        await until_cold(pair)
        warming = asyncio.ensure_future(pair.quiet.warm())
        await asyncio.sleep(0)
        pair.quiet.abort()
        with pytest.raises(ConnectionError, match="closed"):
            await warming
        await connections.wait_closed()
        with pytest.raises(ConnectionError, match="closed"):
            await pair.quiet.warm()
        assert len(pair.notes.lost) == 1


async def test_an_application_that_cancels_all_tasks_loses_connections_that_get_warm(
    connections: QuietConnections,
) -> None:
    async with connected(connections) as pair:
        await until_cold(pair)
        warming = asyncio.ensure_future(pair.quiet.warm())
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task(), warming}:
            task.cancel()
        with pytest.raises(ConnectionError, match="closed"):
            await warming
        assert pair.notes.lost == [None]
        assert len(connections) == 0


async def test_tls_and_pipes_keep_their_transports(connections: QuietConnections) -> None:
    authority = trustme.CA()
    own, peers = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(own)
    authority.configure_trust(peers)
    loop = asyncio.get_running_loop()
    notes = Noting(False, connections)
    server = await loop.create_server(lambda: notes, "127.0.0.1", 0, ssl=own)
    host, port = server.sockets[0].getsockname()
    reader, writer = await asyncio.open_connection(host, port, ssl=peers, server_hostname="localhost")
    writer.write(b"secret")
    while notes.received != b"secret":
        await asyncio.sleep(0.001)
    assert notes.transport.rest() is False
    await asyncio.sleep(0.01)
    notes.transport.write(b"answer")
    assert await reader.readexactly(6) == b"answer"
    writer.close()
    await connections.wait_closed()
    server.close()


async def test_registry_closes_cold_and_warm_connections(connections: QuietConnections) -> None:
    async with connected(connections) as cold, connected(connections) as warm:
        await until_cold(cold)
        closed = asyncio.ensure_future(connections.wait_closed())
        await asyncio.sleep(0.01)
        assert not closed.done()
        connections.close_clients()
        await closed
        assert cold.notes.lost == warm.notes.lost == [None]
        connections.abort_clients()
    async with connected(connections) as cold, connected(connections) as warm:
        await until_cold(cold)
        warm.quiet.write(b"x" * 400_000)
        connections.abort_clients()
        await connections.wait_closed()


async def test_without_a_descriptor_they_keep_their_transports_until_there_is_one(
    connections: QuietConnections, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(connections) as pair, connected(connections) as other:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() - 1, hard))  # one was that of the folder
        try:
            for each in (pair, other):
                assert each.quiet.rest()
            await asyncio.sleep(0.05)
            assert connections.num_cold == 0
            assert caplog.text.count("connections keep their transports, and take a kibibyte more") == 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        while connections.num_cold < 2:
            await asyncio.sleep(0.01)


async def test_a_retry_for_a_descriptor_can_be_taken_back(
    connections: QuietConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("purgatory.connections.transport.RETRY", 0.05)
    async with connected(connections) as pair:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() - 1, hard))
        try:
            pair.quiet.rest()
            await asyncio.sleep(0.02)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        pair.quiet.stay()
        await asyncio.sleep(0.3)
        assert not pair.quiet.is_cold()


@pytest.mark.parametrize("unable", ["set_protocol", "add_reader"])
async def test_a_loop_that_is_unable_is_named_once_and_nothing_changes(
    connections: QuietConnections, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, unable: str
) -> None:
    class Transport:
        """As of rloop, or of Windows."""

        def __init__(self, transport: Any) -> None:
            self.transport = transport

        def __getattr__(self, name: str) -> Any:
            if name == unable:
                raise AttributeError(name)
            return getattr(self.transport, name)

    class Loop:
        def __getattr__(self, name: str) -> Any:
            return getattr(loop, name)

        def add_reader(self, *arguments: object) -> None:
            raise NotImplementedError

    class Odd(Noting):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(cast(asyncio.Transport, Transport(transport)))

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(connections._watch, "loop", Loop())
    monkeypatch.setattr("purgatory.connections.registry.check_loop", lambda *arguments: None)
    for _ in range(2):
        own, peer = socket.socketpair()
        own.setblocking(False)
        notes = Odd(False, connections)
        await loop.connect_accepted_socket(lambda notes=notes: notes, own)  # type: ignore[misc]
        notes.transport.rest()
        await asyncio.sleep(0.01)
        assert notes.transport.rest() is False
        assert not notes.transport.is_cold()
        peer.send(b"abc")
        while notes.received != b"abc":
            await asyncio.sleep(0.001)
        notes.transport.write(b"def")
        assert peer.recv(10) == b"def"
        peer.close()
        while not notes.lost:
            await asyncio.sleep(0.001)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "Loop can't watch a descriptor or replace a protocol" in caplog.text


async def test_streams_take_a_quiet_transport(connections: QuietConnections) -> None:
    class Quiet(asyncio.StreamReaderProtocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(connections.add(transport))

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert isinstance(writer.transport, QuietTransport)
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
            writer.transport.rest()
        writer.close()

    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Quiet(asyncio.StreamReader(), echo), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    for _ in range(3):
        writer.write(b"hello\n")
        assert await reader.readline() == b"hello\n"
        while not connections.num_cold:
            await asyncio.sleep(0.001)
    writer.close()
    await connections.wait_closed()
    server.close()


async def test_registry_refuses_wrong_times_and_other_loops(connections: QuietConnections) -> None:
    with pytest.raises(ValueError, match="timeout"):
        QuietConnections(rest_after=0.0)
    with pytest.raises(RuntimeError, match="no running event loop"):
        await asyncio.to_thread(QuietConnections)

    async def add() -> None:
        connections.add(None)  # type: ignore[arg-type]

    with pytest.raises(PurgatoryMisuse):
        await asyncio.to_thread(asyncio.run, add())
