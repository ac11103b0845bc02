"""anyio's own tests, on event loops whose timers are on wheels.

`python -m tests.loops.anyio_tests [FOLDER]` downloads the source distribution of the installed anyio with pip into the
folder, unless it is there, and runs the tests that it brings and that use an event loop. Left out are those of files,
of iterators and of pytest's plugin, and those that start interpreters. The backend "asyncio" has the loop of
`purgatory.loops.new_event_loop`, the backend "asyncio+uvloop" that of `new_uvloop`.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.support import brought
from tests.support.paths import ROOT

TESTS: Final = [
    "tests/test_eventloop.py",
    "tests/test_from_thread.py",
    "tests/test_lowlevel.py",
    "tests/test_signals.py",
    "tests/test_sockets.py",
    "tests/test_subprocesses.py",
    "tests/test_synchronization.py",
    "tests/test_taskgroups.py",
    "tests/test_to_thread.py",
    "tests/streams",
]

PLUGIN: Final = """
import replacement
import uvloop

from purgatory import loops

def new_uvloop():
    return loops.new_uvloop()


# anyio's tests know by these which bugs of uvloop to expect.
new_uvloop.__module__ = loops._uvloop_class().__module__ = "uvloop"
replacement.install()
uvloop.new_event_loop = new_uvloop


def pytest_terminal_summary(terminalreporter):
    terminalreporter.line(f"timers on wheels: {replacement.timers}")
"""


def run(folder: Path, tests: list[str], *, replaced: bool = True) -> tuple[str, list[str]]:
    """Run tests, on the loops of asyncio and of uvloop unless `replaced`. Returns the output and those that failed."""
    source = brought.source("anyio", folder)
    (folder / "in_place.py").write_text(PLUGIN)
    cache = folder / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    done = brought.run(
        source,
        *("-o", f"cache_dir={cache}", "-k", "not trio and not ipv6 and not dualstack", *tests),
        plugins=["pytest_mock", *(["in_place"] if replaced else [])],
        paths=[folder, ROOT, Path(__file__).parent],  # anyio's tests are a package of the name of ours
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stdout)
    failed = cache / "v" / "cache" / "lastfailed"
    return done.stdout, list(json.loads(failed.read_text())) if failed.exists() else []


def run_all(folder: Path) -> tuple[str, list[str]]:
    """Run all, except those on trio and of IPv6. Returns the output, and the tests that fail on these loops alone.

    A test that fails on the loops of asyncio and of uvloop too does so because of the machine. One that fails is run
    again: some measure the time of a busy machine.
    """
    output, failed = run(folder, TESTS)
    if failed:
        _, elsewhere = run(folder, failed, replaced=False)
        failed = sorted(set(failed) - set(elsewhere))
    if failed:
        again, failed = run(folder, failed)
        output += again
    return output, failed


if __name__ == "__main__":
    if len(sys.argv) > 1:
        output, failed = run_all(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            output, failed = run_all(Path(folder))
    sys.stdout.write(f"{output}\non these loops alone fail: {failed}\n")
    sys.exit(bool(failed))
