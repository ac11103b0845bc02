"""Very many readers wait for one stream, and an append answers them all."""

import asyncio
import gc
import json
import statistics
import time
from typing import Final

from purgatory.bench.case import Case, Figures, Metric, Scenario
from purgatory.bench.client import LOAD, Connection, Meter, WrongAnswer, connect
from purgatory.bench.processes import allow_open_files
from purgatory.bench.server.requests import OFFSET, ask, check, create, dial, get, head_of_post, quiet
from purgatory.bench.server.servers import SERVERS, missing, running

_SIZE: Final = 100


class _Run:
    """An append, and the readers that it is to reach."""

    def __init__(self) -> None:
        self.message = b""
        self.missing = 0
        """Readers that have not got it yet."""
        self.reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def expect(self, message: bytes, readers: int) -> asyncio.Future[None]:
        """Returns a future for the time when all have got it."""
        self.message, self.missing = message, readers
        self.reached = asyncio.get_running_loop().create_future()
        return self.reached

    def got(self, data: bytes) -> None:
        """A reader has got a message."""
        if data != self.message or not self.missing:
            raise WrongAnswer(f"a reader has got {data[:100]!r}, and not {self.message!r}")
        self.missing -= 1
        if not self.missing:
            self.reached.set_result(None)

    def failed(self, exception: Exception) -> None:
        if not self.reached.done():
            self.reached.set_exception(exception)


class _Reader(Connection):
    """A reader of the stream."""

    run: _Run

    def begin(self, offset: bytes) -> None:
        """Wait for what follows `offset`."""
        raise NotImplementedError

    def again(self) -> None:
        """Wait again, after a message."""


class _LongPoll(_Reader):
    """A reader that asks for what follows."""

    def begin(self, offset: bytes) -> None:
        self.offset = offset
        self.answered = self.polled
        self.failed = self.run.failed
        self.poll()

    def poll(self) -> None:
        """Ask again."""
        cursor = self.headers.get(b"stream-cursor")
        more = {} if cursor is None else {"cursor": cursor.decode()}
        self.request(get("s", offset=self.offset.decode(), live="long-poll", **more))

    def polled(self) -> None:
        """There is an answer."""
        check(self, 200, 204)
        self.offset = self.headers[OFFSET]
        if self.status == 204:
            self.poll()
        else:
            self.run.got(self.body)

    def again(self) -> None:
        self.poll()


class _Events(_Reader):
    """A reader of a stream of events."""

    def begin(self, offset: bytes) -> None:
        self.offset = offset
        self.buffer = b""
        self.failed = self.run.failed
        self.answered = self.ended
        self.ended()

    def ended(self) -> None:
        """The server ends such streams now and then: begin where this one has ended."""
        self.request(get("s", offset=self.offset.decode(), live="sse"))

    def on_body(self, body: bytes) -> None:
        *events, self.buffer = (self.buffer + body).split(b"\n\n")
        for event in events:
            kind, _, data = event.partition(b"\ndata:")
            if kind == b"event: data":
                self.run.got(data.removeprefix(b" "))
            elif kind == b"event: control":
                self.offset = json.loads(data)["streamNextOffset"].encode()
            elif kind != b":":
                raise WrongAnswer(f"an event is {event!r}")


_KINDS: Final[dict[str, type[_Reader]]] = {"long poll": _LongPoll, "SSE": _Events}


async def _measured(case: Case) -> Figures:
    gc.disable()
    parameters = case.parameters
    allow_open_files(parameters["readers"])
    count, times, kind = parameters["readers"], parameters["times"], _KINDS[parameters["by"]]
    with running(case.implementation) as server:
        first = await dial(server)
        await create(first, "s")
        for _ in range(100):  # to warm up
            await ask(first, head_of_post("s", _SIZE) + b"." * _SIZE, 204)
        tail = first.headers[OFFSET]
        first.close()
        await quiet(server)
        empty = server.memory()
        readers_run = _Run()
        readers = []
        async for reader in connect(server.port, count, kind):
            reader.run = readers_run
            reader.begin(tail)
            readers.append(reader)
        await quiet(server)
        kib = (server.memory() - empty) / count

        took, cpu, load = [], [], []
        for number in range(times):
            message = b"%08d " % number + b"." * (_SIZE - 9)
            writer = await dial(server)
            meter, began = Meter(server), time.perf_counter()
            reached = readers_run.expect(message, count)
            await ask(writer, head_of_post("s", _SIZE) + message, 204)
            await reached
            took.append(1e3 * (time.perf_counter() - began))
            load.append(meter.stop(count)["load"])
            await quiet(server)
            cpu.append(meter.stop(count)["cpu_us"])
            writer.close()
            for reader in readers:
                reader.again()
            await quiet(server)
        for reader in readers:
            reader.close()
    return {
        "kib": kib,
        "answer_ms": statistics.median(took),
        "cpu_us": statistics.mean(cpu),
        "load": statistics.median(load),
    }


def _cases(quick: bool) -> list[Case]:
    return [
        Case("readers", implementation, "uvloop", {"by": by, "readers": readers, "times": times})
        for by in _KINDS
        for readers, times in (((200, 2),) if quick else ((1_000, 10), (10_000, 3)))
        for implementation in SERVERS
    ]


SCENARIO = Scenario(
    name="readers",
    title="Streams: readers wait for one stream, and an append answers them all",
    cases=_cases,
    main=_measured,
    metrics=(
        Metric("kib", "the server's memory, a waiting reader", "KiB", compared=True),
        Metric("answer_ms", "from append to the last reader", "ms", compared=True),
        Metric("cpu_us", "the server's CPU, a delivery", "µs", compared=True),
        LOAD,
    ),
    missing=missing,
)
