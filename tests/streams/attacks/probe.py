"""A client that asks for little, and measures how long it waits: python probe.py PORT PID.

It reads every 50 ms by a new connection, and appends every 100 ms by one that it keeps, from an address of its own. An
answer's time counts from when the request was due: a stall of ten seconds delays a hundred appends and not one.
Meanwhile it samples the memory of the process PID and its children. It stops at the end of its standard input.
"""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from typing import Any

import psutil

ADDRESS = "127.0.0.2"
PATH = "/v1/stream/probe"
TEXT = {"Content-Type": "text/plain"}
READ_EVERY = 0.05
APPEND_EVERY = 0.1
SAMPLE_EVERY = 0.05
PATIENCE = 10.0
"""Seconds for the last answers, once the attack is over. A wait that is longer counts as it is then."""


class Requests(threading.Thread):
    """The same request again and again."""

    def __init__(self, every: float, request: Callable[[], int]) -> None:
        super().__init__(daemon=True)
        self.samples: list[tuple[float, int]] = []
        """The seconds until each answer, and its status: 0 for none."""
        self._every = every
        self._request = request
        self._due = time.monotonic()
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._over.wait(max(0.0, self._due - time.monotonic())):
            status = self._request()
            self.samples.append((time.monotonic() - self._due, status))
            self._due += self._every

    def stop(self, patience: float) -> None:
        """Stop, and wait for the answer that is still to come."""
        self._over.set()
        self.join(patience)
        if self.is_alive():
            self.samples.append((time.monotonic() - self._due, 0))


def _connection(port: int) -> HTTPConnection:
    return HTTPConnection("127.0.0.1", port, timeout=60, source_address=(ADDRESS, 0))


def _ask(connection: HTTPConnection, method: str, path: str, body: bytes | None = None) -> int:
    try:
        connection.request(method, path, body, TEXT)
        answer = connection.getresponse()
        answer.read()
    except (OSError, HTTPException):
        connection.close()  # the next request opens it again
        return 0
    return answer.status


def _read(port: int) -> int:
    with contextlib.closing(_connection(port)) as connection:
        return _ask(connection, "GET", f"{PATH}?offset=-1")


def _memory(pid: int) -> int:
    size = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        server = psutil.Process(pid)
        for process in (server, *server.children(recursive=True)):
            size += process.memory_info().rss
    return size


def main(port: int, pid: int) -> dict[str, Any]:
    """What was measured until the end of the standard input."""
    appending = _connection(port)
    _ask(appending, "PUT", PATH)
    begin = largest = _memory(pid)
    reads = Requests(READ_EVERY, lambda: _read(port))
    appends = Requests(APPEND_EVERY, lambda: _ask(appending, "POST", PATH, b"."))
    reading = threading.Thread(target=sys.stdin.read, daemon=True)
    reading.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while reading.is_alive():
        largest = max(largest, _memory(pid))
        reading.join(SAMPLE_EVERY)
    end = time.monotonic() + PATIENCE
    for requests in (reads, appends):
        requests.stop(max(0.0, end - time.monotonic()))
    return {"begin": begin, "memory": max(largest, _memory(pid)), "reads": reads.samples, "appends": appends.samples}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]))))
