"""What the programs gain: `python -m tests.adopted.measure`, each as it is and as it was rebuilt, in turn.

It measures five processes a variant, and writes `measured.json`. Dask is measured if `distributed` is installed, and
keeps its figures otherwise.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from purgatory.bench import machine
from purgatory.bench.case import Figures
from purgatory.bench.client import Client, connect
from purgatory.bench.machine import running
from purgatory.bench.web.clients import listen
from tests.support.paths import ROOT

WAITING: Final = 1_000
ROUNDS: Final = 5


async def fakeredis(rebuilt: bool) -> Figures:
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
    return {"ms": 1e3 * (time.process_time() - began)}


async def dask(rebuilt: bool) -> Figures:
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
    return {"ms": 1e3 * (time.process_time() - began)}


async def mcp(rebuilt: bool) -> Figures:
    """KiB of the server for one of 1,000 listeners that wait, and the seconds from SIGTERM to its end."""
    before = ["uvicorn", "--factory", "purgatory.bench.web.rivals:mcp_sdk"]
    application = ["purgatory.uvicorn", "examples.mcp_listen:app"] if rebuilt else before
    command = [sys.executable, "-m", *application, "--port", "0"]
    request = listen("note://todo")
    with running([*command, "--loop", "uvloop", "--timeout-graceful-shutdown", "30", "--no-access-log"]) as server:
        listeners, empty = [], 0.0
        for count in (100, WAITING):  # the first ones are to warm up
            empty = server.memory()
            listeners.extend([client.send(request) async for client in connect(server.port, count, Client)])
            await asyncio.sleep(3)
        kib = (server.memory() - empty) / WAITING
        began = time.perf_counter()
        server.process.terminate()
        await asyncio.to_thread(server.process.wait)
        return {"KiB": kib, "s": time.perf_counter() - began}


Measure = Callable[[bool], Awaitable[Figures]]
MEASURED: Final[dict[str, tuple[Measure, str]]] = {
    "fakeredis": (fakeredis, "fakeredis"),
    "mcp": (mcp, "mcp"),
    "dask": (dask, "distributed"),
}
VARIANTS: Final = ("as it is", "rebuilt")
FILE: Final = Path(__file__).with_name("measured.json")


def _apart(name: str, variant: str) -> Figures:
    command = [sys.executable, "-m", "tests.adopted.measure", name, variant]
    figures: Figures = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    sys.stdout.write(f"{name}, {variant}: {figures}\n")
    return figures


def main() -> None:
    """Measure all that are installed, and write the file."""
    written = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name, (_, package) in MEASURED.items():
        if find_spec(package) is None:
            sys.stdout.write(f"{name} was not measured: `pip install {package}` brings it\n")
            continue
        rounds = [{variant: _apart(name, variant) for variant in VARIANTS} for _ in range(ROUNDS)]
        written[name] = {"machine": machine.describe(), "release": version(package), "rounds": rounds}
        FILE.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measured: Any = MEASURED[sys.argv[1]][0](sys.argv[2] == "rebuilt")
        json.dump(asyncio.new_event_loop().run_until_complete(measured), sys.stdout)
        sys.stdout.flush()
        os._exit(0)  # those who wait, wait for ever
    else:
        main()
