"""What a thousand waiting clients cost: start the server, let them wait, publish, and print a table.

python -m examples.long_poll_server.measure [--clients 1000] [--seconds 10]
"""

import argparse
import asyncio
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import httpx
import psutil

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def running_server() -> Iterator[tuple[psutil.Process, str]]:
    """A server in a process of its own, on a free port, with its data in a temporary directory."""
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", "examples.long_poll_server", "--port", "0", "--data", data]
        command += ["--max-wait", "300", "--max-pending-client", "1000000"]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if found := re.search(r"running on (http://\S+)", line):
                    yield psutil.Process(process.pid), found[1]
                    break
            process.terminate()
            process.stderr.read()


def idle_cpu(process: psutil.Process, seconds: float) -> float:
    """How much of a core the process takes, in percent, while nothing is asked of it."""
    before = process.cpu_times()
    time.sleep(seconds)
    after = process.cpu_times()
    return 100 * (after.user + after.system - before.user - before.system) / seconds


async def measure(clients: int, seconds: float) -> list[tuple[str, str]]:
    """Rows of the table."""
    async with AsyncExitStack() as stack:
        process, url = stack.enter_context(running_server())
        # A connection for each client; httpx gets slow with more than some in a pool.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        pools = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=400, limits=limits))
            for _ in range(clients // 50 + 1)
        ]

        async def pending() -> int:
            answer: dict[str, dict[str, int]] = (await pools[0].get("/statistics")).json()
            return answer["fetch"]["num_delayed"]

        async def wait_for(topic: str, pool: httpx.AsyncClient) -> bool:
            response = await pool.get(f"/topics/{topic}/messages?wait=300")
            return bool(response.json() == {"messages": [{"offset": 0, "value": topic}], "next_offset": 1})

        await pending()
        cpu_alone = await asyncio.to_thread(idle_cpu, process, seconds)
        memory_alone = process.memory_info().rss
        topics = [f"topic-{n % 100}" for n in range(clients)]
        waiting = [asyncio.create_task(wait_for(topic, pools[n // 50])) for n, topic in enumerate(topics)]
        while await pending() < clients:
            pass
        held = await pending()
        memory = process.memory_info().rss - memory_alone
        cpu = await asyncio.to_thread(idle_cpu, process, seconds)
        start = time.perf_counter()
        for topic in sorted(set(topics)):
            (await pools[0].post(f"/topics/{topic}/messages", json={"value": topic})).raise_for_status()
        answered = sum(await asyncio.gather(*waiting))
        elapsed = time.perf_counter() - start
        return [
            ("clients waiting, on 100 topics", f"{clients:,}"),
            ("operations pending", f"{held:,}"),
            ("memory a client (connection, request, two tasks, operation)", f"{memory / clients / 1024:.1f} KiB"),
            ("CPU of the server while all wait", f"{cpu:.1f} % of a core"),
            ("CPU of the server without clients", f"{cpu_alone:.1f} % of a core"),
            ("answered right after a message to each topic", f"{answered:,} in {elapsed:.2f} s"),
            ("left pending", f"{await pending()}"),
        ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser("long_poll_server.measure", description="What waiting clients cost.")
    parser.add_argument("--clients", type=int, default=1000, metavar="N", help="default: 1000")
    parser.add_argument("--seconds", type=float, default=10.0, help="to measure idle CPU for (default: 10)")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    rows = asyncio.run(measure(options.clients, options.seconds))
    print(f"CPython {platform.python_version()}, {platform.system()} {platform.machine()}, {psutil.cpu_count()} cores")
    print("\n| what | measured |\n| --- | --- |")
    for what, measured in rows:
        print(f"| {what} | {measured} |")


if __name__ == "__main__":
    main()
