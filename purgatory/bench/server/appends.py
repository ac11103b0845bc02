"""Durable appends: writers append as fast as they are answered, each with a connection of its own.

Afterwards each stream is read: every message that was acknowledged is in it once, those of a writer in their order.
"""

import asyncio
import gc
import math
import time
from collections import Counter
from itertools import chain
from typing import Final

from purgatory.bench.case import Case, Figures, Metric, Scenario
from purgatory.bench.client import LOAD, Client, Meter, WrongAnswer, connect, dial, percentile
from purgatory.bench.server.servers import SERVERS, ask, create, head_of_post, missing, read, running

_STREAMS: Final = 16
"""Streams that many writers share."""
_LARGE: Final = 64 * 1024
_WARM: Final = 0.2
"""The share of appends that come before, to warm up."""


class _Writer:
    """Appends one message after the other."""

    def __init__(self, connection: Client, number: int, stream: int, size: int) -> None:
        self.connection = connection
        self.number = number
        self.stream = stream
        self.head = head_of_post(f"s{stream}", size)
        self.padding = b"." * size
        self.acknowledged = 0

    async def append(self, count: int) -> list[float]:
        """Append so many messages. Returns how long each has taken."""
        times = []
        for _ in range(count):
            began = time.perf_counter()
            await ask(self.connection, self.head + _message(self.number, self.acknowledged, self.padding), 204)
            times.append(time.perf_counter() - began)
            self.acknowledged += 1
        return times


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
        connections = [each async for each in connect(server.port, parameters["writers"], Client)]
        writers = [_Writer(each, number, number % streams, size) for number, each in enumerate(connections)]
        each = count // len(writers)
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
        for stream in range(streams):
            some = [writer for writer in writers if writer.stream == stream]
            _look_at(await read(reader, f"s{stream}"), {writer.number: writer.acknowledged for writer in some}, size)
    return {**figures, "p99_ms": percentile([*chain(*times)], 0.99)}


def _look_at(data: bytes, acknowledged: dict[int, int], size: int) -> None:
    """Raise `WrongAnswer` unless these are the messages that were acknowledged, by writer."""
    found, padding = Counter[int](), b"." * size
    for begin in range(0, len(data), size):
        writer = int(data[begin : begin + 4])
        if data[begin : begin + size] != _message(writer, found[writer], padding):
            raise WrongAnswer(f"a stream is wrong at byte {begin}: {data[begin : begin + 20]!r}")
        found[writer] += 1
    if found != acknowledged:
        raise WrongAnswer(f"a stream has {found.total()} messages, and not those that were acknowledged")


def _parameters(writers: int, size: int, requests: int) -> dict[str, int]:
    return {"bytes": size, "writers": writers, "streams": min(writers, _STREAMS), "requests": requests}


SCENARIO = Scenario(
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
    main=_measured,
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
