"""Very many readers wait for one stream, and an append answers them all."""

import asyncio
import gc
import json
import statistics
from collections.abc import Callable
from typing import Any, Final

from purgatory.bench.case import Case, Figures, Metric, Scenario
from purgatory.bench.client import LOAD, SETTLED, Client, Meter, WrongAnswer, connect, dial
from purgatory.bench.machine import allow_open_files
from purgatory.bench.server.servers import OFFSET, READ, ask, check, create, get, head_of_post, missing, quiet, running

_SIZE: Final = 100


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
            body = await self.send(get("s", offset=offset, live="long-poll", **more))
            check(self, 200, 204)
            offset = self.headers[OFFSET].decode()
            if self.status == 200:
                run.got(body)
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


async def _measured(case: Case) -> Figures:
    gc.disable()
    count, kind, times = case.parameters["readers"], _KINDS[case.parameters["by"]], case.parameters["times"]
    allow_open_files(count)
    took, cpu, load = [], [], []
    with running(case.implementation) as server:
        first = await dial(server)
        await create(first, "s")
        for _ in range(100):  # to warm up
            await ask(first, head_of_post("s", _SIZE) + b"." * _SIZE, 204)
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
            message = b"%08d " % number + b"." * (_SIZE - 9)
            writer = await dial(server)
            meter = Meter(server)
            reached = run.expect(message, count)
            await ask(writer, head_of_post("s", _SIZE) + message, 204)
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


SCENARIO = Scenario(
    name="readers",
    title="Streams: readers wait for one stream, and an append answers them all",
    implementations=READ,
    full=[
        {"by": by, **size}
        for by in _KINDS
        for size in ({"readers": 1_000, "times": 10}, {"readers": 10_000, "times": 3})
    ],
    quick=[{"by": by, "readers": 200, "times": 2} for by in _KINDS],
    main=_measured,
    loops=("uvloop",),
    metrics=(
        Metric("kib", "the server's memory, a waiting reader", "KiB", compared=True),
        Metric("answer_ms", "from append to the last reader", "ms", compared=True),
        Metric("cpu_us", "the server's CPU, a delivery", "µs", compared=True),
        LOAD,
    ),
    missing=missing,
)
