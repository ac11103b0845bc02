"""The machine of a measurement, its memory and its event loops."""

import asyncio
import platform
import re
from collections.abc import Coroutine
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import psutil

from purgatory import __core__
from purgatory.bench.case import Loop

T = TypeVar("T")

SOURCE = Path(__file__).parents[2]
"""The folder with `examples`, if this is the project's source and not an installed package."""


def memory() -> int:
    """The resident memory of this process, in bytes."""
    return int(psutil.Process().memory_info().rss)


def run(loop: Loop, main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on a new event loop of that kind, without a clean-up afterwards.

    The process ends at once: the cancellation of a million tasks would take longer than their measurement.
    """
    if loop == "uvloop":
        import uvloop

        return uvloop.new_event_loop().run_until_complete(main)
    return asyncio.new_event_loop().run_until_complete(main)


def describe() -> dict[str, str]:
    """The machine and the versions."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": str(psutil.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 1024**3:.0f} GiB",
        "uvloop": _version("uvloop"),
        "asyncio-purgatory": f"{_version('asyncio-purgatory')}, core in {__core__}",
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.*)$", path.read_text(), re.MULTILINE) if path.exists() else None
    return found[1] if found else platform.processor() or "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
