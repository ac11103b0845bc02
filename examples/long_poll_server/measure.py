"""The cost of ten thousand waiting clients: start the server, let them wait, publish, look on, and print a table.

python -m examples.long_poll_server.measure [--clients 10000] [--topics 100] [--seconds 10] [--plot FILE]

The clients are in processes of their own, each with a loopback address of its own. An answer that is lost or
wrong is an error.
"""

import argparse
import asyncio
import json
import platform
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import psutil
import uvloop

from examples.long_poll_server.load.figures import milliseconds, percentile
from examples.long_poll_server.load.server import ROOT, Server, raise_file_limit, running_server, session
from examples.long_poll_server.load.waiting import Seen, receive, value

SERVER_OPTIONS = ("--max-wait", "300", "--max-pending-client", "1000000", "--max-pending", "1000000")
"""All clients come from a few addresses here, and wait for long."""

RATE = 50
"""Messages a second, each of which wakes one client."""

FAN_OUT = 10
"""Messages a second, each of which wakes the clients of a topic."""


@dataclass
class Measured:
    """The counts of the clients."""

    clients: int
    topics: int
    processes: int
    connection: float = 0.0
    """Bytes of the server's for a client that has connected."""
    request: float = 0.0
    """Bytes more for its request that waits."""
    cpu_alone: float = 0.0
    """Percent of a core, without clients."""
    cpu: float = 0.0
    """While all wait."""
    one_alone: list[float] = field(default_factory=list)
    """Latencies, in seconds: of the only client there is."""
    one: list[float] = field(default_factory=list)
    """Of one client while all others wait."""
    in_turn: list[float] = field(default_factory=list)
    """Of the clients of one topic after the other."""
    at_once: list[float] = field(default_factory=list)
    """Of the clients of all topics together."""
    scrapes: list[float] = field(default_factory=list)
    """Of `GET /metrics`, meanwhile."""
    lost: int = 0
    pending: int = 0
    """At most, as `GET /metrics` says."""
    left: int = 0
    """Pending at the end."""

    def rows(self) -> list[tuple[str, str]]:
        """Of the table."""
        ratio = percentile(self.one, 50) / percentile(self.one_alone, 50)
        connection, request = self.connection / 1024, self.request / 1024
        return [
            (f"clients waiting, on {self.topics:,} topics", f"{self.clients:,}"),
            (
                "memory a client: its connection, and its request that waits",
                f"{connection + request:.1f} KiB: {connection:.1f} + {request:.1f}",
            ),
            (
                "CPU of the server while all wait, and without clients",
                f"{self.cpu:.1f} %, {self.cpu_alone:.1f} % of a core",
            ),
            (f"latency: one client, and no other waits, {RATE} messages a second", milliseconds(self.one_alone)),
            (
                f"one client, while all others wait ({ratio:.2f} times the median)",
                milliseconds(self.one),
            ),
            (
                f"a topic's {self.clients // self.topics:,} clients, {FAN_OUT} topics a second",
                milliseconds(self.in_turn),
            ),
            ("all clients, a message to all topics at once", milliseconds(self.at_once)),
            ("`GET /metrics` meanwhile", milliseconds(self.scrapes)),
            ("answers", f"{len(self.in_turn) + len(self.at_once):,}, of which lost or wrong {self.lost}"),
            ("left pending", f"{self.left}"),
        ]


async def measure(clients: int, topics: int, seconds: float) -> Measured:
    """Measure, with all figures. Raises `ValueError` if that many clients do not find room here."""
    processes = _processes(clients)
    measured = Measured(clients, topics, processes)
    with running_server(*SERVER_OPTIONS) as server:
        async with session(server.url) as client:
            await _memory(server, client, measured)
    with running_server(*SERVER_OPTIONS) as server:
        async with session(server.url) as client:
            await _latencies(server, client, measured, seconds)
    return measured


def _processes(clients: int) -> int:
    files = raise_file_limit() - 200
    if clients > files:
        raise ValueError(f"{clients:,} clients: a process may open {files + 200:,} files here (ulimit -Hn)")
    ports = 25_000
    with suppress(OSError):  # where it is not Linux
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        ports = int(last) - int(first)
    return -(-clients // min(files, ports, 10_000))


async def _memory(server: Server, client: aiohttp.ClientSession, measured: Measured) -> None:
    """Connections first, then a request on each."""
    await server.metrics(client)
    address = ("127.0.0.1", urlsplit(server.url).port)
    before = (await server.metrics(client)).memory
    with ExitStack() as stack:
        connections = [
            stack.enter_context(await asyncio.to_thread(socket.create_connection, address))
            for _ in range(measured.clients)
        ]
        while (await server.metrics(client)).files < measured.clients:
            pass
        connected = (await server.metrics(client)).memory
        for number, connection in enumerate(connections):
            path = f"/topics/topic-{number % measured.topics}/messages?offset=0&wait=300"
            connection.sendall(
                f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: x\r\nAccept: */*\r\n\r\n".encode()
            )
        await server.until_pending(client, measured.clients)
        waiting = (await server.metrics(client)).memory
    measured.connection = (connected - before) / measured.clients
    measured.request = (waiting - connected) / measured.clients
    await server.until_pending(client, 0)


async def _latencies(server: Server, client: aiohttp.ClientSession, measured: Measured, seconds: float) -> None:
    count = max(20, round(seconds * RATE))
    measured.cpu_alone = await server.idle_cpu(seconds)
    measured.one_alone = await _one(client, "alone", count)
    async with asyncio.TaskGroup() as group:  # should a process of clients fail, that is the end
        clients = [group.create_task(_wait(server.url, number, measured)) for number in range(measured.processes)]
        await server.until_pending(client, measured.clients)
        measured.cpu = await server.idle_cpu(seconds)
        server.scrapes.clear()
        async with _scraping(server, client, measured):
            measured.one = await _one(client, "one", count)
            for number in range(measured.topics):
                await asyncio.gather(_publish(client, f"topic-{number}", 0), asyncio.sleep(1 / FAN_OUT))
            await server.until_pending(client, measured.clients)
            await asyncio.gather(*(_publish(client, f"topic-{number}", 1) for number in range(measured.topics)))
            await asyncio.wait(clients)
    measured.scrapes = server.scrapes
    for seen in [each.result() for each in clients]:
        measured.in_turn += seen.latencies[0]
        measured.at_once += seen.latencies[1]
        measured.lost += seen.lost
    after = await server.metrics(client)
    measured.left = after.pending()
    answered = {outcome: after.finished(outcome) for outcome in ("satisfied", "expired", "cancelled", "failed")}
    expected = 2 * measured.clients + 2 * count
    if answered["satisfied"] != expected or sum(answered.values()) != expected:
        raise RuntimeError(f"{expected:,} requests were to be answered once each, not {answered}")


async def _wait(url: str, number: int, measured: Measured) -> Seen:
    """A process of clients, with an address of its own."""
    source = f"127.0.0.{1 + number}"
    mine = range(number, measured.clients, measured.processes)
    clients = [0] * measured.topics
    for each in mine:
        clients[each % measured.topics] += 1
    topics = [f"topic-{topic}:{count}" for topic, count in enumerate(clients) if count]
    command = ["-m", "examples.long_poll_server.load.waiting", "--url", url, "--source", source, "--messages", "2"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, *topics, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise RuntimeError("the process of waiting clients has failed")
    return Seen(**json.loads(output))


async def _publish(client: aiohttp.ClientSession, topic: str, offset: int) -> None:
    async with client.post(f"/topics/{topic}/messages", json={"value": value(topic, offset)}) as response:
        if (await response.json())["offset"] != offset:
            raise RuntimeError(f"another message is in {topic} already")


async def _one(client: aiohttp.ClientSession, topic: str, count: int) -> list[float]:
    """Latencies of one client that waits for one message after the other."""
    latencies = []
    for offset in range(count):
        waiting = asyncio.create_task(receive(client, topic, offset))
        await asyncio.sleep(1 / RATE)
        await _publish(client, topic, offset)
        latency = await waiting
        if latency is None:
            raise RuntimeError(f"message {offset} of {topic} was not answered as it should be")
        latencies.append(latency)
    return latencies


@asynccontextmanager
async def _scraping(server: Server, client: aiohttp.ClientSession, measured: Measured) -> AsyncIterator[None]:
    """Look at the metrics all the while: their values must be possible."""

    async def scrape() -> None:
        answered = 0
        while True:
            metrics = await server.metrics(client)
            measured.pending = max(measured.pending, metrics.pending())
            if metrics.pending() > measured.clients + 1 or metrics.finished("satisfied") < answered:
                raise RuntimeError("GET /metrics says what cannot be")
            answered = metrics.finished("satisfied")
            await asyncio.sleep(0.25)

    scraping = asyncio.create_task(scrape())
    try:
        yield
    finally:
        scraping.cancel()
        with suppress(asyncio.CancelledError):
            await scraping


def plot(measured: Measured, path: Path) -> None:
    """Draw how many of the answers came within how long."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4), dpi=110, layout="constrained")
    axis = figure.subplots()
    curves: Sequence[tuple[str, list[float], str]] = [
        ("one client, no other waits", measured.one_alone, "#7a7a7a"),
        (f"one client, {measured.clients:,} others wait", measured.one, "#0b6e99"),
        (f"{measured.clients // measured.topics:,} clients of a topic", measured.in_turn, "#edae49"),
        (f"{measured.clients:,} clients, all topics at once", measured.at_once, "#d1495b"),
    ]
    for label, latencies, colour in curves:
        axis.ecdf([1000 * latency for latency in latencies], label=label, color=colour)
    axis.set_xscale("log")
    axis.set_xlabel("milliseconds from publish to answer")
    axis.set_ylabel("share of the answers")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)
    figure.savefig(path)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser("long_poll_server.measure", description="The costs of waiting clients.")
    parser.add_argument("--clients", type=int, default=10_000, metavar="N", help="default: 10000")
    parser.add_argument("--topics", type=int, default=100, metavar="N", help="that they wait on (default: 100)")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each of the measurements (default: 10)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the latencies")
    options = parser.parse_args()
    if not 1 <= options.topics <= options.clients or not 0 < options.seconds < float("inf"):
        parser.error("there must be a topic at least, a client for each, and more than 0 seconds")
    began = time.monotonic()
    try:
        measured = uvloop.run(measure(options.clients, options.topics, options.seconds))
    except ValueError as error:
        parser.error(str(error))
    print(f"CPython {platform.python_version()}, {platform.system()} {platform.machine()}, {psutil.cpu_count()} cores")
    print("\n| what (latencies: 50th, 90th, 99th percentile, and the most) | measured |\n| --- | --- |")
    for what, told in measured.rows():
        print(f"| {what} | {told} |")
    print(f"\n{time.monotonic() - began:.0f} seconds")
    if options.plot is not None:
        plot(measured, options.plot)
        print(options.plot)
    if measured.lost or measured.left:
        sys.exit("answers were lost")


if __name__ == "__main__":
    main()
