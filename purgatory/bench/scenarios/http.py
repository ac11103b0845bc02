"""Real HTTP: thousands of clients wait at the long-poll server over loopback, and a message answers them all.

The alternative is the same server with an `asyncio.Event` under `asyncio.timeout`. The clients share this process. The
time until all are answered includes their work, which is the same for both servers. The server's CPU time and memory do
not.
"""

import asyncio
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, cast
from urllib.parse import urlsplit

import httptools
import psutil

from purgatory.bench import machine
from purgatory.bench.case import OURS, Case, Figures, Metric, Plot, Scenario

SERVERS: Final = {OURS: "examples.long_poll_server", "Event + timeout": "purgatory.bench.event_server"}
AT_ONCE: Final = 250
"""The number of connections opened at a time: a server's backlog is bounded."""


class Client(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self.parser: Any = httptools.HttpResponseParser(self)
        self.body: bytes = b""
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def connection_lost(self, exception: Exception | None) -> None:
        if not self.answer.done():
            self.answer.set_exception(exception or ConnectionResetError("the server has hung up"))

    def on_body(self, body: bytes) -> None:
        """A callback of the parser."""
        self.body += body

    def on_message_complete(self) -> None:
        """A callback of the parser."""
        if not self.answer.done():
            self.answer.set_result(json.loads(self.body))

    def ask(self, method: str, path: str, body: str = "") -> "asyncio.Future[Any]":
        """Send a request. Returns a future for the answer, which is JSON."""
        self.answer = asyncio.get_running_loop().create_future()
        self.body = b""
        self.parser = httptools.HttpResponseParser(self)
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        self.transport.write((head + body).encode())
        return self.answer


@contextmanager
def running_server(module: str) -> Iterator[tuple[psutil.Process, int]]:
    """The server in a process of its own, and its port."""
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", module, "--port", "0", "--data", data]
        command += ["--max-wait", "300", "--max-pending-client", "1000000"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(line)
                if found := re.search(r"running on (http://\S+)", line):
                    yield psutil.Process(process.pid), urlsplit(found[1]).port or 80
                    break
            else:
                raise RuntimeError(f"{module} did not start: {''.join(said)}")
            process.terminate()
            process.stderr.read()


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def run(case: Case) -> Figures:
    """Let all clients wait, publish, and measure the server."""
    count = case.parameters["clients"]
    loop = asyncio.get_running_loop()
    with running_server(SERVERS[case.implementation]) as (process, port):

        async def connect() -> Client:
            return (await loop.create_connection(Client, "127.0.0.1", port))[1]

        control = await connect()
        await control.ask("GET", "/statistics")
        memory = process.memory_info().rss
        cpu = _cpu(process)
        clients: list[Client] = []
        answers: list[asyncio.Future[Any]] = []
        while len(clients) < count:
            some = await asyncio.gather(*(connect() for _ in range(min(AT_ONCE, count - len(clients)))))
            answers += [client.ask("GET", "/topics/news/messages?wait=300") for client in some]
            clients += some
        while (await control.ask("GET", "/statistics"))["fetch"]["num_delayed"] < count:
            await asyncio.sleep(0.05)
        memory = process.memory_info().rss - memory
        cpu_waiting, began = _cpu(process), time.perf_counter()
        await control.ask("POST", "/topics/news/messages", '{"value": "hello"}')
        right = {"messages": [{"offset": 0, "value": "hello"}], "next_offset": 1}
        wrong = sum(answer != right for answer in await asyncio.gather(*answers))
        elapsed = time.perf_counter() - began
        cpu_answered = _cpu(process)
        for client in clients:
            client.transport.abort()
    return {
        "kib": memory / 1024 / count,
        "answer_ms": 1e3 * elapsed,
        "cpu_answer_us": 1e6 * (cpu_answered - cpu_waiting) / count,
        "cpu_us": 1e6 * (cpu_answered - cpu) / count,
        "wrong": wrong,
    }


def measure(case: Case) -> Figures:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return machine.run(case.loop, run(case))


def cases(quick: bool) -> list[Case]:
    return [Case("http", implementation, "uvloop", {"clients": 200 if quick else 5_000}) for implementation in SERVERS]


def missing() -> str | None:
    """The reason if the scenario cannot be measured here."""
    if not (machine.SOURCE / "examples" / "long_poll_server").is_dir():
        return "the long-poll server is among the examples, which come with the project's source, not with the package"
    return None


SCENARIO = Scenario(
    name="http",
    title="Real HTTP: clients wait at the long-poll server",
    cases=cases,
    measure=measure,
    metrics=(
        Metric("answer_ms", "from publish to all answered", "ms", compared=True),
        Metric("cpu_answer_us", "the server's CPU for it, a client", "µs", compared=True),
        Metric("cpu_us", "the server's CPU from connect to answer, a client", "µs", compared=True),
        Metric("kib", "the server's memory, a client", "KiB", compared=True),
        Metric("wrong", "wrong answers", ""),
    ),
    plots=(Plot("answer", metric="answer_ms"), Plot("memory", metric="kib")),
    missing=missing,
)
