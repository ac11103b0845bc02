"""Very many clients that wait at `purgatory.uvicorn`: `python -m tests.support.parked [--clients N] [--seconds S]`.

Prints the server's memory, its wake-ups and CPU time while the clients wait, and the time and CPU until one publish has
answered all. The clients come from 64 addresses of loopback.
"""

import argparse
import asyncio
import sys
import time

from purgatory.bench import machine
from purgatory.bench.case import OURS
from purgatory.bench.client import Client, abort, connect
from purgatory.bench.processes import Running, allow_open_files, running
from purgatory.bench.web.servers import POLLS


async def run(count: int, seconds: float) -> list[str]:
    """Measure, and return lines of text."""
    with running(POLLS[OURS]) as server:
        control = await anext(connect(server.port, 1, Client))
        await control.ask("GET", "/now")
        alone = await _idle(server, seconds)
        empty = server.memory()
        clients: list[Client] = []
        async for client in connect(server.port, count, Client):
            client.ask("GET", "/wait?topic=all&after=0")
            clients.append(client)
            if len(clients) % 10_000 == 0 and sys.stderr.isatty():
                sys.stderr.write(f"{len(clients):,} clients wait\n")
        while int(await control.ask("GET", "/waiting")) < count:
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        memory = server.memory()
        waiting = await _idle(server, seconds)
        cpu, began = server.cpu(), time.perf_counter()
        await control.ask("POST", "/publish?topic=all")
        bodies = await asyncio.gather(*(client.answer for client in clients))
        took, cpu = time.perf_counter() - began, server.cpu() - cpu
        assert set(bodies) == {b"1"}
        abort(clients)
    return [
        f"{count:,} clients wait: {(memory - empty) / count:.2f} KiB each, {memory / 1024:.0f} MiB in all",
        f"in {seconds:g} s meanwhile: {waiting[0]} wake-ups, {100 * waiting[1] / seconds:.1f} % of a core;"
        f" before the first client: {alone[0]}, {100 * alone[1] / seconds:.1f} %",
        f"answered by one publish within {took:.2f} s, {1e6 * cpu / count:.0f} us of the server's CPU each",
    ]


async def _idle(server: Running, seconds: float) -> tuple[int, float]:
    """The wake-ups and the CPU time of the server in some seconds. uvicorn itself wakes up ten times a second."""
    switches, cpu = server.process.num_ctx_switches().voluntary, server.cpu()
    await asyncio.sleep(seconds)
    return server.process.num_ctx_switches().voluntary - switches, server.cpu() - cpu


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
