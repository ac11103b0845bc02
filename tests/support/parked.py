"""Very many clients that wait: `python -m tests.support.parked [KIND] [--clients N] [--warm]`.

Prints the server's memory, its wake-ups and CPU time while the clients wait, and the time and CPU until all are
answered, if they are. The clients come from 64 addresses of loopback. Several of these commands at once are several
servers.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from contextlib import ExitStack
from typing import Final, NamedTuple

from purgatory.bench import machine
from purgatory.bench.case import OURS
from purgatory.bench.client import SETTLED, Client, abort, connect, dial
from purgatory.bench.machine import Running, allow_open_files, running
from purgatory.bench.server.clients import create, get
from purgatory.bench.web.servers import EVENTS, POLLS, WARM


class _Kind(NamedTuple):
    request: bytes
    """Of each client."""
    command: list[str] | None = None
    """Of the server; `None` is `purgatory serve`."""


_FIRST: Final = 200
"""Clients that come and go before the measurement: what their server loads and sets up once is not counted."""
_WAIT: Final = b"GET /wait?topic=all&after=0 HTTP/1.1\r\nHost: x\r\n\r\n"
_NOW: Final = b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n"


def _kinds(name: str) -> dict[str, _Kind]:
    return {
        "poll": _Kind(_WAIT, POLLS[name]),
        "events": _Kind(_WAIT, EVENTS[name]),
        "idle": _Kind(_NOW, POLLS[name]),
        "serve": _Kind(get("s", offset="now", live="long-poll")),
        "serve-events": _Kind(get("s", offset="now", live="sse")),
    }


async def run(name: str, count: int, seconds: float, warm: bool) -> list[str]:
    """Measure, and return lines of text."""
    kind = _kinds(WARM if warm else OURS)[name]
    with ExitStack() as stack:
        command = kind.command
        if command is None:
            data = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            command = [sys.executable, "-m", "purgatory", "serve", "--port", "0", "--data", data]
            command += ["--long-poll-timeout", "600", "--event-stream-timeout", "600"]
            command += ["--cool-after", "inf"] * warm
        server = stack.enter_context(running(command))
        control = await dial(server)
        if kind.command is None:
            await create(control, "s")
        abort(await _connected(server, kind, _FIRST))
        await asyncio.sleep(1)
        alone = await _idle(server, seconds)
        empty = server.memory()
        clients = await _connected(server, kind, count)
        await asyncio.sleep(SETTLED)
        memory = server.memory()
        waiting = await _idle(server, seconds)
        lines = [
            f"{name}, {count:,} clients: {(memory - empty) / count:.2f} KiB each, {memory / 1024:.0f} MiB in all",
            f"in {seconds:g} s meanwhile: {waiting[0]} wake-ups, {100 * waiting[1] / seconds:.1f} % of a core;"
            f" before the first client: {alone[0]}, {100 * alone[1] / seconds:.1f} %",
        ]
        if name == "poll":
            cpu, began = server.cpu(), time.perf_counter()
            await control.ask("POST", "/publish?topic=all")
            bodies = await asyncio.gather(*(client.answer for client in clients))
            took, cpu = time.perf_counter() - began, server.cpu() - cpu
            assert set(bodies) == {b"1"}
            lines.append(f"answered within {took:.2f} s, {1e6 * cpu / count:.0f} us of the server's CPU each")
        abort(clients)
    return lines


async def _connected(server: Running, kind: _Kind, count: int) -> list[Client]:
    """So many clients, each of which has sent its request."""
    clients: list[Client] = []
    async for client in connect(server.port, count, Client):
        client.send(kind.request)
        clients.append(client)
        if len(clients) % 10_000 == 0 and sys.stderr.isatty():
            sys.stderr.write(f"{len(clients):,} clients\n")
    return clients


async def _idle(server: Running, seconds: float) -> tuple[int, float]:
    """The wake-ups and the CPU time of the server in some seconds. uvicorn itself wakes up ten times a second."""
    switches, cpu = server.process.num_ctx_switches().voluntary, server.cpu()
    await asyncio.sleep(seconds)
    return server.process.num_ctx_switches().voluntary - switches, server.cpu() - cpu


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.support.parked")
    parser.add_argument("kind", nargs="?", choices=_kinds(OURS), default="poll", help="(default: %(default)s)")
    parser.add_argument("--clients", type=int, default=15_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="for which wake-ups are counted (default: 10)")
    parser.add_argument("--warm", action="store_true", help="let connections keep their transports")
    options = parser.parse_args()
    try:
        allow_open_files(options.clients)
    except ValueError as error:
        sys.exit(f"{options.clients:,} clients need as many open files in a process: {error} (ulimit -n)")
    lines = machine.run("uvloop", run(options.kind, options.clients, options.seconds, options.warm))
    sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
