"""A server that is killed with -9 again and again, under the official client's idempotent producers."""

import os
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.streams.node import installed
from tests.streams.processes import ServerProcess
from tests.support.servers import PostgresServer, program, reserved_port

WHOLE = os.environ.get("HYPOTHESIS_PROFILE") == "searching"
KILLS = int(os.environ.get("KILLS", "200" if WHOLE else "3"))


def follow(url: str, stopped: threading.Event) -> list[Any]:
    """What long polls find in a stream, through all kills, until nothing comes after the event."""
    found: list[Any] = []
    offset = "-1"
    with httpx.Client(timeout=10) as http:
        while True:
            try:
                response = http.get(url, params={"offset": offset, "live": "long-poll"})
            except httpx.HTTPError:
                if stopped.is_set():
                    raise
                time.sleep(0.02)
                continue
            if response.status_code == 200:
                found += response.json()
                offset = response.headers["stream-next-offset"]
            elif stopped.is_set() and response.status_code == 204:
                return found


def check(*options: str, postgres: PostgresServer | None = None) -> None:
    """Kill the server, and its database in turn, while producers append, and compare what they and a reader know."""
    options = (*options, "--port", str(reserved_port()), "--long-poll-timeout", "1")
    server = ServerProcess(*options)
    url = f"{server.url}/v1/stream/a"
    assert httpx.put(url, headers={"Content-Type": "application/json"}, timeout=60).status_code == 201
    stopped = threading.Event()
    names = [f"producer-{number}" for number in range(3)]
    commands = [[program("node", "nodejs"), "producer.mjs", url, name] for name in names]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(follow, url, stopped)
        producers = [subprocess.Popen(command, cwd=installed(), **pipes) for command in commands]
        try:
            for number in range(KILLS):
                time.sleep(random.uniform(0.2, 1.0))
                if postgres is None or number % 2:
                    server.kill()
                    server = ServerProcess(*options)
                else:
                    postgres.kill()
                    time.sleep(0.2)
                    postgres.restart()
            for producer in producers:
                assert producer.stdin is not None
                producer.stdin.close()  # all stop before the first is waited for
                producer.stdin = None  # communicate() would flush it
            counts = [int(producer.communicate(timeout=1000)[0]) for producer in producers]
            stopped.set()
            found = reading.result(60)
        finally:
            stopped.set()
            for producer in producers:
                producer.kill()
                producer.communicate()
            server.kill()
    read: dict[str, list[int]] = defaultdict(list)
    for name, number in found:
        read[name].append(number)
    assert read == {name: list(range(count)) for name, count in zip(names, counts, strict=True)}
    assert min(counts) > 0
    sys.stdout.write(f"{KILLS} kills, {sum(counts):,} messages\n")  # pytest -s shows it


@pytest.mark.timeout(7200)
@pytest.mark.skipif(not WHOLE, reason="takes long: HYPOTHESIS_PROFILE=searching; the other one kills servers too")
def test_server_that_is_killed_loses_no_stored_message(tmp_path: Path) -> None:
    check("--data", str(tmp_path))


@pytest.mark.timeout(7200)
def test_server_and_database_killed_in_turn_lose_no_stored_message(postgres: PostgresServer) -> None:
    check("--database", postgres.create_database(), postgres=postgres)
