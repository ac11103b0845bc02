"""Readers wait for many streams by long polls. Appends come at a steady rate, and the readers wait again at once."""

import asyncio
import time
from collections import deque
from typing import Final

from purgatory.bench.case import Case, Figures, Metric, Scenario
from purgatory.bench.streams.client import (
    LOAD,
    Connection,
    Meter,
    WrongAnswer,
    check,
    connect,
    create,
    dial,
    get,
    head_of_post,
    percentile,
    quiet,
    run,
)
from purgatory.bench.streams.servers import SERVERS, missing, running

_SIZE: Final = 100
_WRITERS: Final = 10
"""Connections that append, each to as many streams."""
_WARM: Final = 0.2
"""The share of appends that come before, to warm up."""
_PATIENCE: Final = 120.0
"""Seconds in which the last message has to arrive."""


class _Run:
    """The messages of all streams, and when each of them has come where."""

    def __init__(self, streams: int, readers: int) -> None:
        self.messages: list[list[tuple[bytes, float]]] = [[] for _ in range(streams)]
        """Each with the time of its append."""
        self.missing = 0
        """Messages that readers have not got yet."""
        self.readers = readers // streams
        """Those of each stream."""
        self.times: list[float] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_last = False

    def add(self, stream: int) -> bytes:
        """A new message of a stream."""
        message = b"%04d %08d " % (stream, len(self.messages[stream])) + b"." * (_SIZE - 14)
        self.messages[stream].append((message, time.perf_counter()))
        self.missing += self.readers
        return message

    def got(self, stream: int, first: int, data: bytes) -> int:
        """A reader has got these messages, and those before the first one earlier. Returns their number."""
        now = time.perf_counter()
        messages = self.messages[stream][first : first + len(data) // _SIZE]
        if not messages or data != b"".join([message for message, _ in messages]):
            raise WrongAnswer(f"a reader of stream {stream} has got {data[:100]!r} as its message {first}")
        self.times += [now - began for _, began in messages]
        self.missing -= len(messages)
        if self.is_last and not self.missing:
            self.over.set_result(None)
        return len(messages)

    def failed(self, exception: Exception) -> None:
        if not self.over.done():
            self.over.set_exception(exception)


class _Reader(Connection):
    """A reader that waits for more of a stream, again and again."""

    run: _Run

    def begin(self, stream: int, offset: bytes) -> None:
        """Wait for what follows `offset`."""
        self.stream, self.offset, self.count = stream, offset, 0
        self.answered = self.polled
        self.failed = self.run.failed
        self.poll()

    def poll(self) -> None:
        """Ask."""
        more = {"cursor": self.cursor.decode()} if self.cursor else {}
        self.request(get(f"s{self.stream}", offset=self.offset.decode(), live="long-poll", **more))

    def polled(self) -> None:
        """There is an answer."""
        check(self, 200, 204)
        if self.status == 200:
            self.count += self.run.got(self.stream, self.count, self.body)
        self.poll()


class _Writer:
    """Appends to some of the streams, one message after the other."""

    def __init__(self, run: _Run, connection: Connection) -> None:
        self.run = run
        self.connection = connection
        self.due: deque[bytes] = deque()
        """Requests. The first one is under way."""
        connection.answered = self.answered
        connection.failed = run.failed

    def append(self, stream: int) -> None:
        """Append one more message, at once or after those before it."""
        self.due.append(head_of_post(f"s{stream}", _SIZE) + self.run.add(stream))
        if len(self.due) == 1:
            self.connection.request(self.due[0])

    def answered(self) -> None:
        """The first one is stored."""
        check(self.connection, 204)
        self.due.popleft()
        if self.due:
            self.connection.request(self.due[0])


async def _measured(case: Case) -> Figures:
    parameters = case.parameters
    count, streams, rate, seconds = (parameters[name] for name in ("readers", "streams", "rate", "seconds"))
    with running(case.implementation) as server:
        delivered = _Run(streams, count)
        first = await dial(server)
        offsets = []
        for stream in range(streams):
            await create(first, f"s{stream}")
            offsets.append(first.offset)
        number = 0
        async for reader in connect(server, count, _Reader):
            reader.run = delivered
            reader.begin(number % streams, offsets[number % streams])
            number += 1
        await quiet(server)
        writers = [_Writer(delivered, each) async for each in connect(server, _WRITERS, Connection)]
        await _append(delivered, writers, rate, _WARM * seconds)
        before, meter = len(delivered.times), Meter(server)
        await _append(delivered, writers, rate, seconds)
        delivered.is_last = True
        if delivered.missing:
            await asyncio.wait_for(delivered.over, _PATIENCE)
        times = delivered.times[before:]
        figures = meter.stop(len(times))
    return {**figures, "p50_ms": percentile(times, 0.5), "p99_ms": percentile(times, 0.99)}


async def _append(run: _Run, writers: list[_Writer], rate: int, seconds: float) -> None:
    """Append at a steady rate, to one stream after the other."""
    began, done = time.perf_counter(), 0
    while done < rate * seconds:
        due = min(int(rate * (time.perf_counter() - began)) + 1, int(rate * seconds))
        for number in range(done, due):
            stream = number % len(run.messages)
            writers[stream % len(writers)].append(stream)
        done = due
        await asyncio.sleep(max(0.0, began + done / rate - time.perf_counter()))
        if run.over.done():
            run.over.result()  # raises what has failed


def _cases(quick: bool) -> list[Case]:
    readers, seconds = (200, 1) if quick else (2_000, 10)
    return [
        Case(
            "delivery",
            implementation,
            "uvloop",
            {"streams": 100, "readers": readers, "rate": rate, "seconds": seconds},
        )
        for rate in ((20,) if quick else (20, 100))
        for implementation in SERVERS
    ]


SCENARIO = Scenario(
    name="delivery",
    title="Streams: from append to the reader, with 100 streams",
    cases=_cases,
    measure=lambda case: run(_measured(case)),
    metrics=(
        Metric("p50_ms", "half of the messages are with a reader within", "ms", compared=True),
        Metric("p99_ms", "99 % of them within", "ms", compared=True),
        Metric("cpu_us", "the server's CPU, a delivery", "µs", compared=True),
        Metric("rate", "deliveries", "/s"),
        LOAD,
    ),
    missing=missing,
)
