"""Catch-up reads: each reader reads a stream from its beginning, again and again."""

import asyncio
from functools import partial
from typing import Final

from purgatory.bench.case import Case, Figures, Metric, Scenario
from purgatory.bench.streams.client import (
    LOAD,
    Connection,
    Meter,
    WrongAnswer,
    ask,
    check,
    connect,
    create,
    get,
    head_of_post,
    run,
)
from purgatory.bench.streams.servers import SERVERS, missing, running

_WARM: Final = 0.2
"""The share of reads that come before, to warm up."""


async def _measured(case: Case) -> Figures:
    parameters = case.parameters
    count, size = parameters["requests"], parameters["bytes"]
    messages = [b"%08d " % number + b"." * (size - 9) for number in range(parameters["messages"])]
    with running(case.implementation) as server:
        connections = [each async for each in connect(server, parameters["connections"], Connection)]
        await create(connections[0], "s")
        for message in messages:
            await ask(connections[0], head_of_post("s", size) + message, 204)
        expected = b"".join(messages)
        await _read(connections, expected, int(_WARM * count))
        meter = Meter(server)
        await _read(connections, expected, count)
        return meter.stop(count)


async def _read(connections: list[Connection], expected: bytes, count: int) -> None:
    """Read so many times in all."""
    over = asyncio.get_running_loop().create_future()
    request = get("s", offset="-1")
    left = under_way = 0

    def failed(exception: Exception) -> None:
        if not over.done():
            over.set_exception(exception)

    def begin(connection: Connection) -> None:
        nonlocal left, under_way
        if left:
            left -= 1
            under_way += 1
            connection.request(request)

    def answered(connection: Connection) -> None:
        nonlocal under_way
        check(connection, 200)
        if connection.body != expected or not connection.up_to_date:
            raise WrongAnswer(f"a read has returned {connection.body[:100]!r}, and not all messages")
        under_way -= 1
        begin(connection)
        if not under_way:
            over.set_result(None)

    left = count
    for connection in connections:
        connection.failed = failed
        connection.answered = partial(answered, connection)
        begin(connection)
    await over


def _cases(quick: bool) -> list[Case]:
    parameters = {"connections": 64, "messages": 100, "bytes": 100, "requests": 1_000 if quick else 20_000}
    return [Case("reads", implementation, "uvloop", parameters) for implementation in SERVERS]


SCENARIO = Scenario(
    name="reads",
    title="Streams: catch-up reads of a whole stream",
    cases=_cases,
    measure=lambda case: run(_measured(case)),
    metrics=(
        Metric("us", "time a read", "µs", compared=True),
        Metric("rate", "reads", "/s"),
        Metric("cpu_us", "the server's CPU, a read", "µs", compared=True),
        LOAD,
    ),
    missing=missing,
)
