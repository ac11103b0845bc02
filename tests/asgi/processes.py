"""An ASGI server in a process of its own, which ends with the test."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx

from tests.support.paths import ROOT


class Server:
    """The process and its URL."""

    def __init__(self, *command: str, **environment: str) -> None:
        # uvicorn's 5 s are httpx's own: a client delayed by load would send its next request as the server closes.
        environment = {**os.environ, "UVICORN_TIMEOUT_KEEP_ALIVE": "75", **environment}
        self.process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        output = self.output = list[str]()
        """The lines of the log so far."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            output.append(line)
            if found := re.search(r"(?:running on|listening at:) (http://127\.0\.0\.1:\d+)", line, re.IGNORECASE):
                self.url = found[1]
                return
        raise RuntimeError(f"the server did not start: {''.join(output)}")

    def client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        return httpx.AsyncClient(base_url=self.url, timeout=60, limits=limits)

    async def until_waiting(self, count: int) -> list[Any]:
        """Return the states of all processes when that many operations are pending in them together."""
        seen: dict[int, Any] = {}
        while not seen or sum(state["num_delayed"] for state in seen.values()) != count:
            async with self.client() as client:
                # Concurrent requests on separate connections reach all processes.
                requests = (client.get("/state") for _ in range(10))
                # Each request has to end here: one that connects while the client closes would leak its socket.
                for answer in await asyncio.gather(*requests, return_exceptions=True):
                    if isinstance(answer, httpx.ConnectError):
                        continue  # the workers do not listen yet
                    if isinstance(answer, BaseException):
                        raise answer
                    state = answer.json()
                    seen[state["pid"]] = state
        return list(seen.values())

    async def end(self) -> str:
        """Wait until the process ends by itself. Returns its output."""
        _, output = await asyncio.to_thread(self.process.communicate)
        return output


@contextmanager
def serving(*command: str, **environment: str) -> Iterator[Server]:
    server = Server(*command, **environment)
    with server.process:
        try:
            yield server
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.process.pid, signal.SIGKILL)
