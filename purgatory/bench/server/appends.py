"""Durable appends: writers append as fast as they are answered, each with a connection of its own.

Afterwards each stream is read: every message that was acknowledged is in it once, those of a writer in their order.
"""

import asyncio
import gc
import time
from collections import Counter
from typing import Final

from purgatory.bench.case import Case, Figures, Metric, Scenario
from purgatory.bench.client import LOAD, Connection, Meter, WrongAnswer, connect, percentile
from purgatory.bench.server.requests import check, create, dial, head_of_post, read
from purgatory.bench.server.servers import SERVERS, missing, running

_STREAMS: Final = 16
"""Streams that many writers share."""
_LARGE: Final = 64 * 1024
_WARM: Final = 0.2
"""The share of appends that come before, to warm up."""


class _Run:
    """Some appends by all writers, as many as there are left."""

    def __init__(self, size: int) -> None:
        self.left = 0
        self.size = size
        self.padding = b"." * size
        self.acknowledged: Counter[tuple[int, int]] = Counter()
        """By stream and writer."""
        self.times: list[float] = []
        self.over: asyncio.Future[None]
        self.under_way = 0

    async def append(self, writers: "list[_Writer]", count: int) -> list[float]:
        """Append so many messages. Returns how long each has taken."""
        self.left, self.times = count, []
        self.over = asyncio.get_running_loop().create_future()
        for writer in writers:
            writer.begin()
        await self.over
        return self.times

    def failed(self, exception: Exception) -> None:
        if not self.over.done():
            self.over.set_exception(exception)


class _Writer:
    """Appends one message after the other."""

    def __init__(self, run: _Run, connection: Connection, number: int, stream: int) -> None:
        self.run = run
        self.connection = connection
        self.key = stream, number
        self.head = head_of_post(f"s{stream}", run.size)
        connection.answered = self.answered
        connection.failed = run.failed

    def begin(self) -> None:
        """Append a message, if there are any left."""
        run = self.run
        if run.left:
            run.left -= 1
            run.under_way += 1
            self.began = time.perf_counter()
            self.connection.request(self.head + _message(self.key[1], run.acknowledged[self.key], run.padding))

    def answered(self) -> None:
        """The message is stored."""
        run = self.run
        check(self.connection, 204)
        run.times.append(time.perf_counter() - self.began)
        run.acknowledged[self.key] += 1
        run.under_way -= 1
        self.begin()
        if not run.under_way:
            run.over.set_result(None)


def _message(writer: int, number: int, padding: bytes) -> bytes:
    head = b"%04d %08d " % (writer, number)
    return head + padding[len(head) :]


async def _measured(case: Case) -> Figures:
    gc.disable()
    parameters = case.parameters
    count, size, streams = parameters["requests"], parameters["bytes"], parameters["streams"]
    with running(case.implementation) as server:
        control = await dial(server)
        for stream in range(streams):
            await create(control, f"s{stream}")
        appends = _Run(size)
        connections = [each async for each in connect(server.port, parameters["writers"], Connection)]
        writers = [_Writer(appends, each, number, number % streams) for number, each in enumerate(connections)]
        await appends.append(writers, max(len(writers), int(_WARM * count)))
        meter = Meter(server)
        times = await appends.append(writers, count)
        figures = meter.stop(count)
        control.close()
        reader = await dial(server)
        for stream in range(streams):
            _look_at(await read(reader, f"s{stream}"), stream, appends)
    return {**figures, "p99_ms": percentile(times, 0.99)}


def _look_at(data: bytes, stream: int, appends: _Run) -> None:
    """Raise `WrongAnswer` unless these are the messages that were acknowledged."""
    size, found = appends.size, Counter[tuple[int, int]]()
    for begin in range(0, len(data), size):
        key = stream, int(data[begin : begin + 4])
        if data[begin : begin + size] != _message(key[1], found[key], appends.padding):
            raise WrongAnswer(f"stream {stream} is wrong at byte {begin}: {data[begin : begin + 20]!r}")
        found[key] += 1
    if found != {key: count for key, count in appends.acknowledged.items() if key[0] == stream}:
        raise WrongAnswer(f"stream {stream} has {found.total()} messages, and not those that were acknowledged")


def _cases(quick: bool) -> list[Case]:
    full = (
        (1, 100, 2_000),
        (64, 100, 20_000),
        (512, 100, 20_000),
        (1, _LARGE, 1_000),
        (64, _LARGE, 4_000),
        (512, _LARGE, 4_000),
    )
    few = (1, 100, 100), (64, 100, 1_000), (64, _LARGE, 500)
    return [
        Case(
            "appends",
            implementation,
            "uvloop",
            {"bytes": size, "writers": writers, "streams": min(writers, _STREAMS), "requests": requests},
        )
        for writers, size, requests in (few if quick else full)
        for implementation in SERVERS
    ]


SCENARIO = Scenario(
    name="appends",
    title="Streams: durable appends",
    cases=_cases,
    main=_measured,
    metrics=(
        Metric("us", "time an append", "µs", compared=True),
        Metric("rate", "appends", "/s"),
        Metric("p99_ms", "99 % are stored within", "ms", compared=True),
        Metric("cpu_us", "the server's CPU, an append", "µs", compared=True),
        LOAD,
    ),
    missing=missing,
)
