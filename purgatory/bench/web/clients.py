"""Real HTTP: thousands of clients wait at a small application over loopback.

Each implementation is a server in a process of its own. The clients share this process: the time until all are answered
has their work in it, which is the same for all servers. The server's CPU time and memory do not.

http: a message answers all clients.

arrivals: all clients come to a new server in a certain pace.

events: clients of event streams are idle, then hear broadcasts, then the server shuts down. All servers have
`--timeout-graceful-shutdown 5`, because some would never stop without it.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from purgatory.bench.case import Case, Figures, Metric, Scenario
from purgatory.bench.client import SETTLED, Client, Meter, abort, connect, connected, dial, request
from purgatory.bench.machine import Running, allow_open_files, running
from purgatory.bench.web.servers import ARRIVALS, EVENTS, POLLS, missing


async def run_polls(case: Case) -> Figures:
    """Measure requests that do not wait and idle connections, and then, on a new server, clients that wait."""
    count, requests = case.parameters["clients"], case.parameters["requests"]
    allow_open_files(count)
    figures: Figures = {}
    with running(POLLS[case.implementation]) as server:
        busy = await connected(server.port, 20)
        await asyncio.gather(*(_ask_often(client, requests // 100) for client in busy))  # to warm up
        figures["now_us"] = min([await _now(server, busy, requests // 4) for _ in range(4)])
        meter = Meter(server)
        idle = []
        async for client in connect(server.port, count, Client):
            await client.ask("GET", "/now")
            idle.append(client)
        await asyncio.sleep(SETTLED)
        figures["idle_kib"] = meter.kib() / count
        abort(idle)

    with running(POLLS[case.implementation]) as server:
        control, one = await connected(server.port, 2)
        await _ask_often(control, 100)
        meter = Meter(server)
        clients = await connected(server.port, count, request("GET", "/wait?topic=all&after=0"))
        await until_waiting(control, count)
        await asyncio.sleep(SETTLED)
        figures["kib"] = meter.kib() / count
        latencies = [await _latency(control, one, number) for number in range(200)]
        figures["latency_us"] = 1e6 * statistics.median(latencies)

        return figures | await _answer(server, control, clients)


async def _answer(server: Running, control: Client, clients: list[Client]) -> Figures:
    """Answer all clients, which wait, by one message."""
    meter = Meter(server)
    await control.ask("POST", "/publish?topic=all")
    bodies = await asyncio.gather(*(client.answer for client in clients))
    figures = {"answer_ms": 1e3 * meter.seconds()}
    await asyncio.sleep(0.1)
    figures["cpu_answer_us"] = 1e6 * meter.cpu() / len(clients)
    figures["wrong"] = sum(body != b"1" for body in bodies)
    return figures


async def _now(server: Running, clients: list[Client], requests: int) -> float:
    """The CPU time of a request in µs."""
    meter = Meter(server)
    await asyncio.gather(*(_ask_often(client, requests // len(clients)) for client in clients))
    return 1e6 * meter.cpu() / requests


async def _ask_often(client: Client, times: int) -> None:
    for _ in range(times):
        await client.ask("GET", "/now")


async def _latency(control: Client, one: Client, number: int) -> float:
    """Seconds from a publish to the answer of one waiting client."""
    answer = one.ask("GET", f"/wait?topic=one&after={number}")
    await asyncio.sleep(0.002)
    began = time.perf_counter()
    published = control.ask("POST", "/publish?topic=one")
    await answer
    took = time.perf_counter() - began
    await published
    return took


async def until_waiting(control: Client, count: int) -> None:
    """Return when `count` clients wait at the server."""
    while int(await control.ask("GET", "/waiting")) < count:
        await asyncio.sleep(0.05)


_BROWSER: Final = b"""GET /wait?topic=all&after=0 HTTP/1.1
Host: localhost
Origin: http://a.example
User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:130.0) Gecko/20100101 Firefox/130.0
Accept: */*
Accept-Language: en-US,en;q=0.5
Accept-Encoding: gzip, deflate

""".replace(b"\n", b"\r\n")

PACES: Final[dict[str, tuple[int, float, int, float]]] = {
    "one by one": (1, 0.002, 0, 0.0),
    "in batches": (500, 0.05, 100, 0.03),
    "at once": (500, 0.0, 10_000, 0.0),
}
"""How many clients connect at a time and the seconds until the next ones do, and the same for their requests. With 0,
each sends its request as soon as it is connected."""


async def run_arrivals(case: Case) -> Figures:
    """Let all clients come to a server that has just started, as after a deployment, and answer them."""
    count = case.parameters["clients"]
    at_a_time, pause, requests, between = PACES[case.parameters["pace"]]
    allow_open_files(count)
    figures: Figures = {}
    with running(ARRIVALS[case.implementation]) as server:
        control, other = await connected(server.port, 2)
        await control.ask("GET", "/waiting")
        meter = Meter(server)
        longest = asyncio.create_task(_longest(other))
        clients: list[Client] = []
        while len(clients) < count:
            some = [each async for each in connect(server.port, min(at_a_time, count - len(clients)), Client, False)]
            for client in some if not requests else ():
                client.send(_BROWSER)
            clients += some
            await asyncio.sleep(pause)
        for first in range(0, count if requests else 0, requests or 1):
            for client in clients[first : first + requests]:
                client.send(_BROWSER)
            await asyncio.sleep(between)
        await until_waiting(control, count)
        longest.cancel()
        figures["longest_ms"] = 1e3 * await longest
        await asyncio.sleep(SETTLED)
        figures["kib"] = meter.kib() / count
        return figures | await _answer(server, control, clients)


async def _longest(client: Client) -> float:
    """The longest time for which another client has waited for an answer, in seconds, until this is cancelled."""
    longest = 0.0
    with suppress(asyncio.CancelledError):
        while True:
            began = time.perf_counter()
            await client.ask("GET", "/now")
            longest = max(longest, time.perf_counter() - began)
            await asyncio.sleep(0.005)
    return longest


def listen(uri: str) -> bytes:
    """A client's request to listen for updates of a resource by MCP."""
    version, prefix = "2026-07-28", "io.modelcontextprotocol"
    params = {
        "_meta": {f"{prefix}/protocolVersion": version, f"{prefix}/clientCapabilities": {}},
        "notifications": {"toolsListChanged": True, "resourceSubscriptions": [uri]},
    }
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params})
    head = f"""POST /mcp HTTP/1.1
Host: localhost:1
Accept: application/json, text/event-stream
Content-Type: application/json
Content-Length: {len(body)}
MCP-Protocol-Version: {version}
Mcp-Method: subscriptions/listen

"""
    return (head.replace("\n", "\r\n") + body).encode()


class _Listener(Client):
    """A client of an event stream. Its `answer` is done when the stream has ended properly."""

    def __init__(self, heard: Callable[[], object]) -> None:
        super().__init__()
        self.heard = heard
        """Called at each event."""
        self.ids: list[int] = []
        """The ids of the events so far."""

    def on_body(self, body: bytes) -> None:
        *lines, self.body = (self.body + body).split(b"\n")
        for line in lines:
            if line.startswith(b"id:"):
                self.ids.append(int(line[3:]))
                self.heard()
            elif b"/resources/updated" in line:  # the SDK of MCP does not number its events
                self.ids.append(len(self.ids) + 1)
                self.heard()


class _Topic:
    """A topic, and the clients of its stream."""

    def __init__(self, name: str, control: Client) -> None:
        self.name = name
        self.control = control
        self.listeners: list[_Listener] = []
        self.late = 0
        self.all_here = asyncio.Event()

    async def open(self, count: int, port: int, implementation: str) -> None:
        """Let so many clients come."""
        request = f"GET /wait?topic={self.name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        if implementation == "MCP SDK":
            request = listen(f"topic://{self.name}")
        async for listener in connect(port, count, lambda: _Listener(self._heard)):
            self.listeners.append(listener)
            listener.send(request)

    def _heard(self) -> None:
        self.late -= 1
        if not self.late:
            self.all_here.set()

    async def publish(self) -> float:
        """Seconds from a publish until all clients have its event. One that gets lost is counted elsewhere."""
        self.late = len(self.listeners)
        self.all_here.clear()
        began = time.perf_counter()
        published = self.control.ask("POST", f"/publish?topic={self.name}")
        with suppress(TimeoutError):
            async with asyncio.timeout(60):
                await self.all_here.wait()
        took = time.perf_counter() - began
        await published
        return took


async def run_events(case: Case) -> Figures:
    """Measure idle streams, events for one and for all of them, and a shutdown."""
    count, seconds, times = (case.parameters[name] for name in ("clients", "seconds", "times"))
    allow_open_files(count)
    figures: Figures = {}
    with running(EVENTS[case.implementation]) as server:
        control = await dial(server)
        one, all_ = _Topic("one", control), _Topic("all", control)
        await one.open(1, server.port, case.implementation)
        await until_waiting(control, 1)
        for _ in range(100):  # to warm up
            await one.publish()

        before = Meter(server)
        await all_.open(count, server.port, case.implementation)
        await until_waiting(control, count + 1)
        await asyncio.sleep(SETTLED)
        meter = Meter(server)
        await asyncio.sleep(seconds)
        figures["idle_cpu"] = 100 * meter.cpu() / meter.seconds()
        figures["kib"] = before.kib() / count

        figures["latency_us"] = 1e6 * statistics.median([await one.publish() for _ in range(200)])
        meter = Meter(server)
        figures["event_ms"] = 1e3 * statistics.median([await all_.publish() for _ in range(times)])
        await asyncio.sleep(0.1)
        figures["cpu_event_us"] = 1e6 * meter.cpu() / count / times
        figures["wrong"] = sum(each.ids != list(range(1, times + 1)) for each in all_.listeners)

        await control.ask("POST", "/publish?topic=all")
        began = time.perf_counter()
        server.process.terminate()
        await asyncio.to_thread(server.process.wait)
        figures["stop_s"] = time.perf_counter() - began
        ends = await asyncio.gather(*(each.answer for each in all_.listeners), return_exceptions=True)
        figures["stop_clean"] = 100 * sum(not isinstance(end, Exception) for end in ends) / count
        figures["stop_missed"] = 100 * sum(each.ids[times:] != [times + 1] for each in all_.listeners) / count
    return figures


HTTP = Scenario(
    name="http",
    title="Real HTTP: clients wait at a small application",
    implementations=POLLS,
    full=[{"clients": clients, "requests": 80_000} for clients in (1_000, 10_000)],
    quick=[{"clients": 200, "requests": 2_000}],
    main=run_polls,
    loops=("uvloop",),
    metrics=(
        Metric("kib", "the server's memory, a waiting client", "KiB", compared=True),
        Metric("idle_kib", "the server's memory, an idle connection", "KiB", compared=True),
        Metric("answer_ms", "from publish to all answered", "ms", compared=True),
        Metric("cpu_answer_us", "the server's CPU for it, a client", "µs", compared=True),
        Metric("latency_us", "from publish to the answer of one among all", "µs", compared=True),
        Metric("now_us", "the server's CPU, a request that does not wait (least of four parts)", "µs", compared=True),
        Metric("wrong", "wrong answers", ""),
    ),
    missing=missing,
)
ARRIVING = Scenario(
    name="arrivals",
    title="Arrivals: all clients come to a new server, which is FastAPI with CORS",
    implementations=ARRIVALS,
    full=[{"clients": 10_000, "pace": pace} for pace in PACES],
    quick=[{"clients": 200, "pace": pace} for pace in PACES],
    main=run_arrivals,
    loops=("uvloop",),
    metrics=(
        Metric("kib", "the server's memory, a waiting client", "KiB", compared=True),
        Metric("longest_ms", "the longest that another client waits meanwhile", "ms", compared=True),
        Metric("answer_ms", "from publish to all answered", "ms", compared=True),
        Metric("cpu_answer_us", "the server's CPU for it, a client", "µs", compared=True),
        Metric("wrong", "wrong answers", ""),
    ),
    missing=missing,
)
EVENT_STREAMS = Scenario(
    name="events",
    title="Server-sent events: idle clients, broadcasts and a shutdown",
    implementations=EVENTS,
    # It idles as long as it is from one heartbeat of a stream to the next.
    full=[{"clients": clients, "seconds": 15, "times": 5} for clients in (1_000, 10_000)],
    quick=[{"clients": 200, "seconds": 1, "times": 3}],
    main=run_events,
    loops=("uvloop",),
    metrics=(
        Metric("kib", "the server's memory, an idle stream", "KiB", compared=True),
        Metric("idle_cpu", "the server's CPU with idle streams and their heartbeats", "% of a core", compared=True),
        Metric("event_ms", "from publish to the event at all clients", "ms", compared=True),
        Metric("cpu_event_us", "the server's CPU, an event and client", "µs", compared=True),
        Metric("latency_us", "from publish to the event at one among all", "µs", compared=True),
        Metric("wrong", "clients that missed an event", ""),
        Metric("stop_s", "from SIGTERM to the end of the process", "s", compared=True),
        Metric("stop_clean", "streams that SIGTERM ended properly", "%"),
        Metric("stop_missed", "clients that missed the event just before SIGTERM", "%"),
    ),
    missing=missing,
)
