"""A client that asks for little, and measures how long it waits: python probe.py PORT PID.

It reads every 50 ms by a new connection, and appends every 100 ms by one that it keeps, from an address of its own. An
answer's time counts from when the request was due: a stall of ten seconds delays a hundred appends and not one.
Meanwhile it samples the memory of the process PID and its children. It stops at the end of its standard input.
"""

import asyncio
import contextlib
import json
import sys
import time
from typing import Any

import aiohttp
import psutil

ADDRESS = "127.0.0.2"
TEXT = {"Content-Type": "text/plain"}
READ_EVERY = 0.05
APPEND_EVERY = 0.1
SAMPLE_EVERY = 0.05
PATIENCE = 10.0
"""Seconds for the last answers, once the attack is over. A wait that is longer counts as it is then."""


class Requests:
    """The same request again and again, by new connections or by one that is kept."""

    def __init__(self, port: int, is_kept: bool) -> None:
        connector = aiohttp.TCPConnector(local_addr=(ADDRESS, 0), force_close=not is_kept)
        self.session = aiohttp.ClientSession(f"http://127.0.0.1:{port}/v1/stream/", connector=connector, headers=TEXT)
        self.samples: list[tuple[float, int]] = []
        """The seconds until each answer, and its status: 0 for none."""
        self.due = 0.0
        self.is_over = False

    async def ask(self, method: str, target: str, body: bytes | None = None) -> int:
        try:
            async with self.session.request(method, target, data=body, timeout=aiohttp.ClientTimeout(60)) as answer:
                await answer.read()
                return answer.status
        except (aiohttp.ClientError, TimeoutError):
            return 0

    async def run(self, every: float, *request: Any) -> None:
        self.due = time.monotonic()
        while not self.is_over:
            status = await self.ask(*request)
            self.samples.append((time.monotonic() - self.due, status))
            self.due += every
            await asyncio.sleep(self.due - time.monotonic())


def _memory(pid: int) -> int:
    size = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        server = psutil.Process(pid)
        for process in (server, *server.children(recursive=True)):
            size += process.memory_info().rss
    return size


async def main(port: int, pid: int) -> dict[str, Any]:
    """What was measured until the end of the standard input."""
    reads, appends = Requests(port, False), Requests(port, True)
    async with reads.session, appends.session:
        await appends.ask("PUT", "probe")
        begin = largest = _memory(pid)
        running = {
            reads: asyncio.create_task(reads.run(READ_EVERY, "GET", "probe?offset=-1")),
            appends: asyncio.create_task(appends.run(APPEND_EVERY, "POST", "probe", b".")),
        }
        reading = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while not reading.done():
            largest = max(largest, _memory(pid))
            await asyncio.wait([reading], timeout=SAMPLE_EVERY)
        reads.is_over = appends.is_over = True
        _, late = await asyncio.wait(running.values(), timeout=PATIENCE)
        for requests, task in running.items():
            if task in late:
                requests.samples.append((time.monotonic() - requests.due, 0))
                task.cancel()
    return {"begin": begin, "memory": max(largest, _memory(pid)), "reads": reads.samples, "appends": appends.samples}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))))
