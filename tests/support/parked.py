"""Very many clients that wait at `purgatory.uvicorn`: `python -m tests.support.parked [--clients N] [--seconds S]`.

Prints the server's memory, its wake-ups and CPU time while the clients wait, and the time and CPU until one publish has
answered all. The clients come from as many addresses of loopback as their number needs.
"""

import argparse
import asyncio
import sys
import time

import psutil

from purgatory.bench import machine
from purgatory.bench.case import OURS
from purgatory.bench.web.client import Client, abort, allow_open_files, arriving, connect, cpu_seconds, running

PORTS = 25_000
"""Connections to one address of loopback."""


async def run(count: int, seconds: float) -> list[str]:
    """Measure, and return lines of text."""
    with running(OURS) as (process, port):
        (control,) = await connect(1, port)
        await control.ask("GET", "/now")
        alone = await _idle(process, seconds)
        empty = process.memory_info().rss
        clients: list[Client] = []
        async for client in arriving(count, port, "/wait?topic=all&after=0", -(-count // PORTS)):
            clients.append(client)
            if len(clients) % 10_000 == 0 and sys.stderr.isatty():
                sys.stderr.write(f"{len(clients):,} clients wait\n")
        while int(await control.ask("GET", "/waiting")) < count:
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        memory = process.memory_info().rss
        waiting = await _idle(process, seconds)
        cpu, began = cpu_seconds(process), time.perf_counter()
        await control.ask("POST", "/publish?topic=all")
        bodies = await asyncio.gather(*(client.answered for client in clients))
        took, cpu = time.perf_counter() - began, cpu_seconds(process) - cpu
        assert set(bodies) == {b"1"}
        abort(clients)
    return [
        f"{count:,} clients wait: {(memory - empty) / 1024 / count:.2f} KiB each, {memory / 1e6:.0f} MB in all",
        f"in {seconds:g} s meanwhile: {waiting[0]} wake-ups, {100 * waiting[1] / seconds:.1f} % of a core;"
        f" before the first client: {alone[0]}, {100 * alone[1] / seconds:.1f} %",
        f"answered by one publish within {took:.2f} s, {1e6 * cpu / count:.0f} us of the server's CPU each",
    ]


async def _idle(process: psutil.Process, seconds: float) -> tuple[int, float]:
    """The wake-ups and the CPU time of the server in some seconds. uvicorn itself wakes up ten times a second."""
    switches, cpu = process.num_ctx_switches().voluntary, cpu_seconds(process)
    await asyncio.sleep(seconds)
    return process.num_ctx_switches().voluntary - switches, cpu_seconds(process) - cpu


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.support.parked")
    parser.add_argument("--clients", type=int, default=15_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="for which wake-ups are counted (default: 10)")
    options = parser.parse_args()
    try:
        allow_open_files(options.clients)
    except ValueError as error:
        sys.exit(f"{options.clients:,} clients need as many open files in a process: {error} (ulimit -n)")
    for line in machine.run("uvloop", run(options.clients, options.seconds)):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
