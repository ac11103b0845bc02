"""A soak: waves of clients that wait, are answered, hang up, reset and are killed leave nothing behind."""

import asyncio
import subprocess
import sys

import pytest

from purgatory.bench.case import OURS
from purgatory.bench.client import Client, connect
from purgatory.bench.machine import running
from purgatory.bench.web.servers import POLLS
from tests.support.paths import ROOT

WAVES = 100
LEAST = {"warm": 1, "cold": 77}
"""Those of the latter are 100,000 connections."""
SETTLED = 6
"""Waves in a row that keep less than a leak."""
LEAK = 100
"""Bytes kept for each client."""
ANSWERED, GONE, RESET, KILLED = 400, 300, 300, 300
CLIENTS = ANSWERED + GONE + RESET + KILLED
"""Clients of a wave."""

KILLED_CLIENTS = f"""
import asyncio, sys
from purgatory.bench.client import Client, connect
async def main():
    clients = [client async for client in connect(int(sys.argv[1]), {KILLED}, Client, pace=False)]
    for client in clients:
        client.ask("GET", "/wait?topic=none&after=0")
    print("they wait", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


async def until_waiting(control: Client, count: int) -> None:
    while int(await control.ask("GET", "/waiting")) != count:
        await asyncio.sleep(0.02)


async def wave(control: Client, port: int, number: int) -> None:
    """Clients that are answered, hang up, reset their connections, or are killed."""
    answered, gone, reset = [
        [each async for each in connect(port, count, Client, pace=False)] for count in (ANSWERED, GONE, RESET)
    ]
    for client in answered:
        client.ask("GET", f"/wait?topic=all&after={number}")
    for client in (*gone, *reset):
        client.ask("GET", "/wait?topic=none&after=0")
    with subprocess.Popen([sys.executable, "-c", KILLED_CLIENTS, str(port)], stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        assert await asyncio.to_thread(killed.stdout.readline) == b"they wait\n"
        await until_waiting(control, CLIENTS)
        killed.kill()
    for client in gone:
        client.answer.cancel()
        client.transport.close()
    for client in reset:
        client.answer.cancel()
        client.transport.abort()
    await control.ask("POST", "/publish?topic=all")
    assert set(await asyncio.gather(*(client.answer for client in answered))) == {b"%d" % (number + 1)}
    for client in answered:
        client.transport.close()
    await until_waiting(control, 0)


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_waves_of_clients_leave_nothing_behind(temperature: str) -> None:
    least = max(SETTLED, LEAST[temperature])
    with running(POLLS[OURS]) as server:
        control = await anext(connect(server.port, 1, Client))
        await control.ask("GET", "/waiting")
        descriptors = server.process.num_fds() + 1  # with epoll's, if the control gets cold
        memory: list[int] = []
        for number in range(WAVES):
            await wave(control, server.port, number)
            while server.process.num_fds() > descriptors:
                await asyncio.sleep(0.05)
            memory.append(server.process.memory_info().rss)
            # The allocator takes its memory in a few steps, at any of the first waves. A leak grows at each wave.
            if number >= least and memory[-1] - memory[-1 - SETTLED] < SETTLED * CLIENTS * LEAK:
                break
        else:
            pytest.fail(f"the memory has not settled in {WAVES} waves: {memory} bytes")


def test_script_shows_many_clients_answered_by_one_publish() -> None:
    command = [sys.executable, "-m", "tests.support.parked", "--clients", "300", "--seconds", "0.5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.startswith("poll, 300 clients: ")
    assert "answered within " in done.stdout
