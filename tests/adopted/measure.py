"""What the programs gain: `python -m tests.adopted.measure`, each as it is and as it was rebuilt, one after the other.

Each figure is the median of five processes a variant, in turn. Dask is measured if it is installed.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from statistics import median
from types import SimpleNamespace
from typing import Any, Final

from purgatory.bench.client import Client, connect
from purgatory.bench.processes import running
from tests.support.paths import ROOT

WAITING: Final = 1_000
ROUNDS: Final = 5


async def fakeredis(rebuilt: bool) -> float:
    """Milliseconds of CPU for 100 writes of other keys, beside 1,000 clients that wait in `BLPOP`."""
    from fakeredis import FakeServer, aioredis

    from tests.adopted.fakeredis import port

    if rebuilt:
        port.install()
    server = FakeServer()
    clients = [aioredis.FakeRedis(server=server) for _ in range(WAITING)]
    waiting = asyncio.gather(*(client.blpop([f"key {n}"], timeout=0) for n, client in enumerate(clients)))
    writer = aioredis.FakeRedis(server=server)
    await asyncio.sleep(3)  # they block
    assert not waiting.done()
    began = time.process_time()
    for number in range(100):
        await writer.set("another", number)
    await asyncio.sleep(0.1)
    return 1e3 * (time.process_time() - began)


async def dask(rebuilt: bool) -> float:
    """Milliseconds of CPU until a lease has gone through 1,000 who wait for it."""
    from distributed.semaphore import SemaphoreExtension

    from tests.adopted.dask_semaphore import port

    scheduler = SimpleNamespace(handlers={}, periodic_callbacks={})
    semaphores = (port.Semaphores if rebuilt else SemaphoreExtension)(scheduler)
    semaphores.create("s", 1, 30)
    assert await semaphores.acquire("s", None, "first")
    began = time.process_time()

    async def use(number: int) -> None:
        assert await semaphores.acquire("s", None, number)
        await asyncio.sleep(0)  # it uses it
        semaphores.release("s", number)

    users = [asyncio.ensure_future(use(number)) for number in range(WAITING)]
    await asyncio.sleep(0)
    semaphores.release("s", "first")
    await asyncio.gather(*users)
    return 1e3 * (time.process_time() - began)


async def mcp(rebuilt: bool) -> float:
    """KiB of the server for one of 1,000 listeners that wait, and the seconds from SIGTERM to its end."""
    application = "examples.mcp_listen:app" if rebuilt else "examples.mcp_listen:app.app"
    command = [sys.executable, "-m", "purgatory.uvicorn" if rebuilt else "uvicorn", application, "--port", "0"]
    body = json.dumps(LISTEN).encode()
    head = f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode()
    with running([*command, "--loop", "uvloop", "--timeout-graceful-shutdown", "30", "--no-access-log"]) as server:
        listeners, before = [], 0.0
        for count in (100, WAITING):  # the first ones are to warm up
            before = server.memory()
            listeners.extend([client.send(head + body) async for client in connect(server.port, count, Client)])
            await asyncio.sleep(3)
        kib = (server.memory() - before) / WAITING
        began = time.perf_counter()
        server.process.terminate()
        await asyncio.to_thread(server.process.wait)
        sys.stderr.write(f"  {'rebuilt' if rebuilt else 'as it is'}: {time.perf_counter() - began:.1f} s to stop\n")
        return kib


LISTEN: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "subscriptions/listen",
    "params": {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        },
        "notifications": {"toolsListChanged": True, "resourceSubscriptions": ["note://todo"]},
    },
}
HEAD: Final = """POST /mcp HTTP/1.1\r
Host: localhost:1\r
Accept: application/json, text/event-stream\r
Content-Type: application/json\r
MCP-Protocol-Version: 2026-07-28\r
Mcp-Method: subscriptions/listen\r
"""
Measure = Callable[[bool], Awaitable[float]]
MEASURED: Final[dict[str, tuple[Measure, str, str]]] = {
    "fakeredis": (fakeredis, "ms", "fakeredis"),
    "mcp": (mcp, "KiB", "mcp"),
    "dask": (dask, "ms", "distributed"),
}


def _apart(name: str, variant: str) -> float:
    command = [sys.executable, "-m", "tests.adopted.measure", name, variant]
    return float(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main() -> None:
    """Measure all, and print the medians."""
    for name, (_, unit, package) in MEASURED.items():
        if find_spec(package) is None:
            sys.stdout.write(f"{name} is not installed\n")
            continue
        figures = [(_apart(name, "as it is"), _apart(name, "rebuilt")) for _ in range(ROUNDS)]
        before, after = (median(each) for each in zip(*figures, strict=True))
        sys.stdout.write(f"{name}: {before:,.1f} {unit} as it is, {after:,.1f} {unit} rebuilt\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measured: Any = MEASURED[sys.argv[1]][0](sys.argv[2] == "rebuilt")
        sys.stdout.write(str(asyncio.new_event_loop().run_until_complete(measured)))
        sys.stdout.flush()
        os._exit(0)  # those who wait, wait for ever
    else:
        main()
