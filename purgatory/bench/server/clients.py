"""Clients of the servers of streams.

appends: writers append as fast as they are answered, each with a connection of its own. Afterwards each stream is read:
every message that was acknowledged is in it once, those of a writer in their order.

readers: very many readers wait for one stream, and an append answers them all.
"""

import asyncio
import gc
import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final
from urllib.parse import quote

from purgatory.bench.case import Case, Figures, Metric, Scenario
from purgatory.bench.client import LOAD, SETTLED, Client, Meter, WrongAnswer, connect, connected, dial, percentile
from purgatory.bench.machine import Running, allow_open_files
from purgatory.bench.server.servers import READ, SERVERS, missing, running

OFFSET: Final = b"stream-next-offset"

_STREAMS: Final = 16
"""Streams that many writers share."""
_LARGE: Final = 64 * 1024
_WARM: Final = 0.2
"""The share of appends that come before, to warm up."""
_SIZE: Final = 100
"""That of a message to readers, in bytes."""
_IDLE: Final = 0.1
"""The share of a core that a server takes while it has nothing to do."""
_PATIENCE: Final = 120.0
"""Seconds after which a server ought to have nothing to do any more."""


def get(stream: str, **parameters: str) -> bytes:
    """A read."""
    query = "&".join(f"{name}={quote(value)}" for name, value in parameters.items())
    return f"GET /v1/stream/{stream}?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def post(stream: str, data: bytes, method: str = "POST") -> bytes:
    """An append."""
    lines = [f"{method} /v1/stream/{stream} HTTP/1.1", "Host: localhost", "Content-Type: text/plain"]
    return "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data


async def ask(connection: Client, data: bytes, *expected: int) -> None:
    """Send a request, and wait for its answer. Raises `WrongAnswer` if its status is none of those expected."""
    await connection.send(data)
    if connection.status not in expected:
        raise WrongAnswer(f"{connection.status} {connection.body[:200]!r}, and not {expected}")


async def create(connection: Client, stream: str) -> None:
    """Create a stream of text."""
    await ask(connection, post(stream, b"", "PUT"), 201)


async def read(connection: Client, stream: str) -> bytes:
    """All that is in a stream."""
    parts = []
    offset = "-1"
    while True:
        await ask(connection, get(stream, offset=offset), 200)
        parts.append(connection.body)
        offset = connection.headers[OFFSET].decode()
        if connection.headers.get(b"stream-up-to-date") == b"true":
            return b"".join(parts)


async def quiet(server: Running) -> None:
    """Wait until the server has done what there is to do: it takes no more CPU. Raises `WrongAnswer`."""
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        meter = Meter(server)
        await asyncio.sleep(0.3)
        if meter.cpu() < _IDLE * meter.seconds():
            return
    raise WrongAnswer(f"the server is still busy after {_PATIENCE:.0f} seconds")


@dataclass(slots=True)
class _Writer:
    """Appends one message after the other."""

    connection: Client
    number: int
    stream: str
    size: int
    acknowledged: int = 0

    async def append(self, count: int) -> list[float]:
        """Append so many messages. Returns how long each has taken."""
        times = []
        for _ in range(count):
            began = time.perf_counter()
            await ask(self.connection, post(self.stream, _message(self.number, self.acknowledged, self.size)), 204)
            times.append(time.perf_counter() - began)
            self.acknowledged += 1
        return times


def _message(writer: int, number: int, size: int) -> bytes:
    return (b"%04d %08d " % (writer, number)).ljust(size, b".")


async def _run_appends(case: Case) -> Figures:
    gc.disable()
    size, streams = case.parameters["bytes"], [f"s{n}" for n in range(case.parameters["streams"])]
    with running(case.implementation) as server:
        control = await dial(server)
        for stream in streams:
            await create(control, stream)
        connections = await connected(server.port, case.parameters["writers"])
        writers = [_Writer(each, n, streams[n % len(streams)], size) for n, each in enumerate(connections)]
        each = case.parameters["requests"] // len(writers)
        await asyncio.gather(*(writer.append(math.ceil(_WARM * each)) for writer in writers))
        meter = Meter(server)
        times = await asyncio.gather(*(writer.append(each) for writer in writers))
        count = each * len(writers)
        figures = {
            "us": 1e6 * meter.seconds() / count,
            "rate": count / meter.seconds(),
            "cpu_us": 1e6 * meter.cpu() / count,
            "load": meter.load(),
        }
        control.close()
        reader = await dial(server)
        for stream in streams:
            some = {writer.number: writer.acknowledged for writer in writers if writer.stream == stream}
            _look_at(await read(reader, stream), some, size)
    return {**figures, "p99_ms": percentile([*chain(*times)], 0.99)}


def _look_at(data: bytes, acknowledged: dict[int, int], size: int) -> None:
    """Raise `WrongAnswer` unless these are the messages that were acknowledged, by writer."""
    found = Counter[int]()
    for begin in range(0, len(data), size):
        writer = int(data[begin : begin + 4])
        if data[begin : begin + size] != _message(writer, found[writer], size):
            raise WrongAnswer(f"a stream is wrong at byte {begin}: {data[begin : begin + 20]!r}")
        found[writer] += 1
    if found != acknowledged:
        raise WrongAnswer(f"a stream has {found.total()} messages, and not those that were acknowledged")


def _parameters(writers: int, size: int, requests: int) -> dict[str, int]:
    return {"bytes": size, "writers": writers, "streams": min(writers, _STREAMS), "requests": requests}


class _Run:
    """An append, and the readers that it is to reach."""

    def __init__(self) -> None:
        self.expect(b"", 0)

    def expect(self, message: bytes, readers: int) -> asyncio.Future[None]:
        """Return a future that is done when so many `readers` have got it."""
        self.message, self.missing = message, readers
        self.reached = asyncio.get_running_loop().create_future()
        self.again = asyncio.Event()
        """Whether readers that have got it ask for more."""
        return self.reached

    def got(self, data: bytes) -> None:
        """A reader has got a message."""
        if data != self.message or not self.missing:
            raise WrongAnswer(f"a reader has got {data[:100]!r}, and not {self.message!r}")
        self.missing -= 1
        if not self.missing:
            self.reached.set_result(None)


class _LongPoll(Client):
    """Asks for what follows."""

    async def follow(self, run: _Run, offset: str) -> None:
        """Read what follows `offset`, until an answer is wrong."""
        while True:
            cursor = self.headers.get(b"stream-cursor")
            more = {} if cursor is None else {"cursor": cursor.decode()}
            await ask(self, get("s", offset=offset, live="long-poll", **more), 200, 204)
            offset = self.headers[OFFSET].decode()
            if self.status == 200:
                run.got(self.body)
                await run.again.wait()


class _Events(Client):
    """Reads a stream of events."""

    buffer = b""

    async def follow(self, run: _Run, offset: str) -> None:
        """Read what follows `offset`, until an answer is wrong."""
        self.run, self.offset = run, offset
        while True:  # the server ends such streams now and then
            await self.send(get("s", offset=self.offset, live="sse"))

    def on_body(self, body: bytes) -> None:
        *events, self.buffer = (self.buffer + body).split(b"\n\n")
        for event in events:
            kind, _, data = event.partition(b"\ndata:")
            if kind == b"event: data":
                self.run.got(data.removeprefix(b" "))
            elif kind == b"event: control":
                self.offset = json.loads(data)["streamNextOffset"]
            elif kind != b":":
                raise WrongAnswer(f"an event is {event!r}")


_KINDS: Final[dict[str, Callable[[], _LongPoll | _Events]]] = {"long poll": _LongPoll, "SSE": _Events}


async def _run_readers(case: Case) -> Figures:
    gc.disable()
    count, kind, times = case.parameters["readers"], _KINDS[case.parameters["by"]], case.parameters["times"]
    allow_open_files(count)
    took, cpu, load = [], [], []
    with running(case.implementation) as server:
        first = await dial(server)
        await create(first, "s")
        for _ in range(100):  # to warm up
            await ask(first, post("s", b"." * _SIZE), 204)
        tail = first.headers[OFFSET].decode()
        first.close()
        await quiet(server)
        meter, run = Meter(server), _Run()
        readers = connect(server.port, count, kind)
        failing: asyncio.Future[Any] = asyncio.gather(
            *[asyncio.ensure_future(reader.follow(run, tail)) async for reader in readers]
        )
        await asyncio.sleep(SETTLED)
        await quiet(server)
        kib = meter.kib() / count
        for number in range(times):
            message = (b"%08d " % number).ljust(_SIZE, b".")
            writer = await dial(server)
            meter = Meter(server)
            reached = run.expect(message, count)
            await ask(writer, post("s", message), 204)
            await asyncio.wait([reached, failing], return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                failing.result()
            took.append(1e3 * meter.seconds())
            load.append(meter.load())
            await quiet(server)
            cpu.append(1e6 * meter.cpu() / count)
            writer.close()
            run.again.set()
            await quiet(server)
        failing.cancel()
    return {
        "kib": kib,
        "answer_ms": statistics.median(took),
        "cpu_us": statistics.mean(cpu),
        "load": statistics.median(load),
    }


APPENDS = Scenario(
    name="appends",
    title="Streams: durable appends",
    implementations=SERVERS,
    full=[
        _parameters(1, 100, 2_000),
        _parameters(64, 100, 20_000),
        _parameters(512, 100, 20_000),
        _parameters(1, _LARGE, 1_000),
        _parameters(64, _LARGE, 4_000),
        _parameters(512, _LARGE, 4_000),
    ],
    quick=[_parameters(1, 100, 100), _parameters(64, 100, 1_000), _parameters(64, _LARGE, 500)],
    main=_run_appends,
    loops=("uvloop",),
    metrics=(
        Metric("us", "time an append", "µs", compared=True),
        Metric("rate", "appends", "/s"),
        Metric("p99_ms", "99 % are stored within", "ms", compared=True),
        Metric("cpu_us", "the server's CPU, an append", "µs", compared=True),
        LOAD,
    ),
    missing=missing,
)
READERS = Scenario(
    name="readers",
    title="Streams: readers wait for one stream, and an append answers them all",
    implementations=READ,
    full=[{"by": by, "readers": count, "times": times} for by in _KINDS for count, times in ((1_000, 10), (10_000, 3))],
    quick=[{"by": by, "readers": 200, "times": 2} for by in _KINDS],
    main=_run_readers,
    loops=("uvloop",),
    metrics=(
        Metric("kib", "the server's memory, a waiting reader", "KiB", compared=True),
        Metric("answer_ms", "from append to the last reader", "ms", compared=True),
        Metric("cpu_us", "the server's CPU, a delivery", "µs", compared=True),
        LOAD,
    ),
    missing=missing,
)
