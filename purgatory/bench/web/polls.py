"""Real HTTP: thousands of clients wait at a small application over loopback, and a message answers them all.

Each implementation is a server in a process of its own. The clients share this process: the time until all are answered
has their work in it, which is the same for all servers. The server's CPU time and memory do not.
"""

import asyncio
import statistics
import time

from purgatory.bench.case import Case, Figures, Metric, Scenario
from purgatory.bench.client import SETTLED, Client, Meter, abort, connected, request
from purgatory.bench.machine import Running, allow_open_files, running
from purgatory.bench.web.servers import POLLS, missing, until_waiting


async def run(case: Case) -> Figures:
    """Measure requests that do not wait and idle connections, and then, on a new server, clients that wait."""
    count, requests = case.parameters["clients"], case.parameters["requests"]
    allow_open_files(count)
    figures: Figures = {}
    with running(POLLS[case.implementation]) as server:
        busy = await connected(server.port, 20)
        await asyncio.gather(*(_ask_often(client, requests // 100) for client in busy))  # to warm up
        figures["now_us"] = min([await _now(server, busy, requests // 4) for _ in range(4)])
        meter = Meter(server)
        idle = await connected(server.port, count, request("GET", "/now"))
        await asyncio.gather(*(client.answer for client in idle))
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

        meter = Meter(server)
        await control.ask("POST", "/publish?topic=all")
        bodies = await asyncio.gather(*(client.answer for client in clients))
        figures["answer_ms"] = 1e3 * meter.seconds()
        await asyncio.sleep(0.1)
        figures["cpu_answer_us"] = 1e6 * meter.cpu() / count
        abort(clients)
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


SCENARIO = Scenario(
    name="http",
    title="Real HTTP: clients wait at a small application",
    implementations=POLLS,
    full=[{"clients": clients, "requests": 80_000} for clients in (1_000, 10_000)],
    quick=[{"clients": 200, "requests": 2_000}],
    main=run,
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
