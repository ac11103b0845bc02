"""A server that is killed with -9 again and again, under the official client's idempotent producers."""

import os
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.streams.node import installed
from tests.streams.processes import ServerProcess
from tests.support.servers import PostgresServer, program, reserved_port

WHOLE = os.environ.get("HYPOTHESIS_PROFILE") == "searching"
KILLS = int(os.environ.get("KILLS", "200" if WHOLE else "3"))


class Killed:
    def __init__(self, *options: str) -> None:
        self._options = (*options, "--port", str(reserved_port()), "--long-poll-timeout", "1")
        self.start()

    def start(self) -> None:
        self._server = ServerProcess(*self._options)
        self.url = self._server.url

    def kill(self) -> None:
        """End it without a word."""
        self._server.process.kill()
        self._server.process.communicate()

    def restart(self, number: int = 0) -> None:
        self.kill()
        self.start()


class Reader(threading.Thread):
    """Follows a stream by long polls, through all kills."""

    def __init__(self, url: str) -> None:
        super().__init__(name="reader")
        self.url = url
        self.found: list[Any] = []
        self.stopped = False

    def run(self) -> None:
        offset = "-1"
        with httpx.Client(timeout=10) as http:
            while True:
                try:
                    response = http.get(self.url, params={"offset": offset, "live": "long-poll"})
                except httpx.HTTPError:
                    time.sleep(0.02)
                    continue
                if response.status_code == 200:
                    self.found += response.json()
                    offset = response.headers["stream-next-offset"]
                elif self.stopped and response.status_code == 204:
                    return


def check(server: Killed, kill: Callable[[int], None]) -> None:
    """Kill while producers append and a reader follows, and compare what each of them knows."""
    folder = installed()
    node = program("node", "nodejs")
    url = f"{server.url}/v1/stream/a"
    assert httpx.put(url, headers={"Content-Type": "application/json"}, timeout=60).status_code == 201
    reader = Reader(url)
    reader.start()
    names = [f"producer-{number}" for number in range(3)]
    producers = [
        subprocess.Popen(
            [node, "producer.mjs", url, name], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in names
    ]
    try:
        for number in range(KILLS):
            time.sleep(random.uniform(0.2, 1.0))
            kill(number)
        for producer in producers:
            assert producer.stdin is not None
            producer.stdin.close()  # all stop before the first is waited for
            producer.stdin = None  # communicate() would flush it
        counts = [int(producer.communicate(timeout=1000)[0]) for producer in producers]
    finally:
        reader.stopped = True
        reader.join(60)
        for producer in producers:
            producer.kill()
            producer.communicate()
        server.kill()
    assert not reader.is_alive()
    read: dict[str, list[int]] = defaultdict(list)
    for name, number in reader.found:
        read[name].append(number)
    assert read == {name: list(range(count)) for name, count in zip(names, counts, strict=True)}
    assert min(counts) > 0
    sys.stdout.write(f"{KILLS} kills, {sum(counts):,} messages\n")  # pytest -s shows it


@pytest.mark.timeout(7200)
@pytest.mark.skipif(not WHOLE, reason="takes long: HYPOTHESIS_PROFILE=searching; the other one kills servers too")
def test_server_that_is_killed_loses_no_stored_message(tmp_path: Path) -> None:
    server = Killed("--data", str(tmp_path))
    check(server, server.restart)


@pytest.mark.timeout(7200)
def test_server_and_database_killed_in_turn_lose_no_stored_message(postgres: PostgresServer) -> None:
    server = Killed("--database", postgres.create_database())

    def kill(number: int) -> None:
        if number % 2:
            server.restart()
        else:
            postgres.kill()
            time.sleep(0.2)
            postgres.restart()

    check(server, kill)
