"""The servers of both scenarios, each of which is a command."""

import asyncio
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from purgatory.bench.case import OURS, Case
from purgatory.bench.client import Client

WARM: Final = f"{OURS}, warm"
"""The same server, whose connections keep their transports."""

_UVICORN: Final = ["--loop", "uvloop", "--no-access-log", "--port", "0", "--backlog", "8192"]
_OPTIONS: Final = [*_UVICORN, "--timeout-keep-alive", "600"]
_PARKING: Final = [sys.executable, "-m", "purgatory.uvicorn", *_OPTIONS]
_WARM: Final = ["env", "PURGATORY_COOL_AFTER=inf", *_PARKING]
_OWN: Final = [sys.executable, "-m", "uvicorn", "--http", "httptools", *_OPTIONS]

POLLS: Final = {
    OURS: [*_PARKING, "purgatory.bench.web.delayed:app"],
    WARM: [*_WARM, "purgatory.bench.web.delayed:app"],
    "not parked": [*_OWN, "purgatory.bench.web.delayed:app"],
    "Event + timeout": [*_OWN, "purgatory.bench.web.event_and_timeout:app"],
    "Node": ["node", str(Path(__file__).with_name("server.js"))],
}

# Without it, a server whose application doesn't end its streams at shutdown would never stop.
_GRACE: Final = ["--timeout-graceful-shutdown", "5"]

EVENTS: Final = {
    OURS: [*_PARKING, *_GRACE, "purgatory.bench.web.delayed:events"],
    WARM: [*_WARM, *_GRACE, "purgatory.bench.web.delayed:events"],
    "not parked": [*_OWN, *_GRACE, "purgatory.bench.web.delayed:events"],
    "sse-starlette": [*_OWN, *_GRACE, "purgatory.bench.web.sse_starlette:app"],
    "fastapi.sse": [*_OWN, *_GRACE, "purgatory.bench.web.fastapi_sse:app"],
    "MCP SDK": [*_OWN, *_GRACE, "purgatory.bench.web.mcp_sdk:app"],
}


_NEEDED: Final = {
    "sse-starlette": ("sse_starlette", "sse-starlette"),
    "fastapi.sse": ("fastapi.sse", "fastapi 0.135 or newer"),
    "MCP SDK": ("mcp.server.subscriptions", "mcp 2.3 or newer"),
}
"""The module that a server imports, and what brings it."""


def missing(case: Case) -> str | None:
    """The reason if a case cannot be measured here."""
    name = case.implementation
    if name == "Node" and shutil.which("node") is None:
        return "node is not installed"
    if name in _NEEDED:
        module, package = _NEEDED[name]
        # Without its package, `find_spec` raises for a module.
        if find_spec(module.partition(".")[0]) is None or find_spec(module) is None:
            return f"{package} is not installed"
    return None


def listening(name: str, topic: str) -> bytes:
    """Return the request for a topic's events at the server of that name."""
    if name == "MCP SDK":
        from purgatory.bench.web import mcp_sdk

        return mcp_sdk.listen(f"topic://{topic}")
    return f"GET /wait?topic={topic} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


async def until_waiting(control: Client, count: int) -> None:
    """Return when `count` clients wait at the server."""
    while int(await control.ask("GET", "/waiting")) < count:
        await asyncio.sleep(0.05)
