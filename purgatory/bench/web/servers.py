"""The servers of both scenarios, each of which is a command."""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from purgatory.bench.case import OURS, Case

WARM: Final = f"{OURS}, warm"
"""The same server, whose connections keep their transports."""

_PORT: Final = ["--loop", "uvloop", "--no-access-log", "--port", "0", "--backlog", "8192"]
_OPTIONS: Final = [*_PORT, "--timeout-keep-alive", "600"]
_PARKING: Final = [sys.executable, "-m", "purgatory.uvicorn", *_OPTIONS]
_WARM: Final = ["env", "PURGATORY_COOL_AFTER=inf", *_PARKING]
_OWN: Final = [sys.executable, "-m", "uvicorn", "--http", "httptools", *_OPTIONS]
_RIVAL: Final = [*_OWN, "--factory"]

POLLS: Final = {
    OURS: [*_PARKING, "purgatory.bench.web.delayed:app"],
    WARM: [*_WARM, "purgatory.bench.web.delayed:app"],
    "not parked": [*_OWN, "purgatory.bench.web.delayed:app"],
    "Event + timeout": [*_RIVAL, "purgatory.bench.web.rivals:event_and_timeout"],
    "Node": ["node", str(Path(__file__).with_name("server.js"))],
}

ARRIVALS: Final = {
    OURS: [*_PARKING, "--factory", "purgatory.bench.web.delayed:cors"],
    "not parked": [*_RIVAL, "purgatory.bench.web.delayed:cors"],
}

# Without it, a server whose application doesn't end its streams at shutdown would never stop.
_GRACE: Final = ["--timeout-graceful-shutdown", "5"]

EVENTS: Final = {
    OURS: [*_PARKING, *_GRACE, "purgatory.bench.web.delayed:events"],
    WARM: [*_WARM, *_GRACE, "purgatory.bench.web.delayed:events"],
    "not parked": [*_OWN, *_GRACE, "purgatory.bench.web.delayed:events"],
    "sse-starlette": [*_RIVAL, *_GRACE, "purgatory.bench.web.rivals:sse_starlette"],
    "fastapi.sse": [*_RIVAL, *_GRACE, "purgatory.bench.web.rivals:fastapi_sse"],
    "MCP SDK": [*_RIVAL, *_GRACE, "purgatory.bench.web.rivals:mcp_sdk"],
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
    if case.scenario == "arrivals" and find_spec("fastapi") is None:
        return "fastapi is not installed"
    if name == "Node" and shutil.which("node") is None:
        return "node is not installed"
    if name in _NEEDED:
        module, package = _NEEDED[name]
        # Without its package, `find_spec` raises for a module.
        if find_spec(module.partition(".")[0]) is None or find_spec(module) is None:
            return f"{package} is not installed"
    return None
