"""Real HTTP: thousands of clients wait at a small application over loopback, and a message answers them all.

Each implementation is a server in a process of its own. The clients share this process: the time until all are answered
has their work in it, which is the same for all servers. The server's CPU time and memory do not.
"""

import asyncio
import statistics
import time
from typing import Final

import psutil

from purgatory.bench import machine
from purgatory.bench.case import Case, Figures, Metric, Plot, Scenario
from purgatory.bench.web.client import (
    SERVERS,
    Client,
    abort,
    allow_open_files,
    arriving,
    connect,
    cpu_seconds,
    missing,
    running,
    until_waiting,
)

SETTLED: Final = 1.0
"""Seconds after which a connection has become small, where it does."""


async def run(case: Case) -> Figures:
    """Measure requests that do not wait and idle connections, and then, on a new server, clients that wait."""
    count, requests = case.parameters["clients"], case.parameters["requests"]
    figures: Figures = {}
    with running(case.implementation) as (process, port):
        busy = await connect(20, port)
        await asyncio.gather(*(_ask_often(client, requests // 100) for client in busy))  # to warm up
        parts = [await _now(process, busy, requests // 10) for _ in range(10)]
        figures["now_us"], figures["now_rate"] = min(cpu for cpu, _ in parts), max(rate for _, rate in parts)
        empty = process.memory_info().rss
        idle = [client async for client in arriving(count, port)]
        await idle[-1].ask("GET", "/now")
        await asyncio.sleep(SETTLED)
        figures["idle_kib"] = (process.memory_info().rss - empty) / 1024 / count
        abort(idle)

    with running(case.implementation) as (process, port):
        control, one = await connect(2, port)
        await _ask_often(control, 100)
        empty, cpu = process.memory_info().rss, cpu_seconds(process)
        clients = [client async for client in arriving(count, port, "/wait?topic=all&after=0")]
        await until_waiting(control, count)
        await asyncio.sleep(SETTLED)
        figures["kib"] = (process.memory_info().rss - empty) / 1024 / count
        latencies = [await _latency(control, one, number) for number in range(200)]
        figures["latency_us"] = 1e6 * statistics.median(latencies)

        cpu_waiting, began = cpu_seconds(process), time.perf_counter()
        await control.ask("POST", "/publish?topic=all")
        bodies = await asyncio.gather(*(client.answered for client in clients))
        figures["answer_ms"] = 1e3 * (time.perf_counter() - began)
        await asyncio.sleep(0.1)
        cpu_answered = cpu_seconds(process)
        abort(clients)
    figures["cpu_answer_us"] = 1e6 * (cpu_answered - cpu_waiting) / count
    figures["cpu_us"] = 1e6 * (cpu_answered - cpu) / count
    figures["wrong"] = sum(body != b"1" for body in bodies)
    return figures


async def _now(process: psutil.Process, clients: list[Client], requests: int) -> tuple[float, float]:
    """The CPU time of a request in µs, and the requests a second."""
    cpu, began = cpu_seconds(process), time.perf_counter()
    await asyncio.gather(*(_ask_often(client, requests // len(clients)) for client in clients))
    took = time.perf_counter() - began
    return 1e6 * (cpu_seconds(process) - cpu) / requests, requests / took


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


def measure(case: Case) -> Figures:
    allow_open_files(case.parameters["clients"])
    return machine.run(case.loop, run(case))


def cases(quick: bool) -> list[Case]:
    counts = (200,) if quick else (1_000, 10_000)
    requests = 2_000 if quick else 40_000
    return [
        Case("http", implementation, "uvloop", {"clients": count, "requests": requests})
        for count in counts
        for implementation in SERVERS
    ]


SCENARIO = Scenario(
    name="http",
    title="Real HTTP: clients wait at a small application",
    cases=cases,
    measure=measure,
    metrics=(
        Metric("kib", "the server's memory, a waiting client", "KiB", compared=True),
        Metric("idle_kib", "the server's memory, an idle connection", "KiB", compared=True),
        Metric("answer_ms", "from publish to all answered", "ms", compared=True),
        Metric("cpu_answer_us", "the server's CPU for it, a client", "µs", compared=True),
        Metric("cpu_us", "the server's CPU from connect to answer, a client", "µs", compared=True),
        Metric("latency_us", "from publish to the answer of one among all", "µs", compared=True),
        Metric("now_us", "the server's CPU, a request that does not wait (least of ten parts)", "µs", compared=True),
        Metric("now_rate", "requests a second that do not wait", "/s"),
        Metric("wrong", "wrong answers", ""),
    ),
    plots=(Plot("answer", metric="answer_ms", x="clients"), Plot("memory", metric="kib", x="clients")),
    missing=lambda case: missing(case.implementation),
)
