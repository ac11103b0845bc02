"""Programs of other people around responses that wait, in processes of their own."""

import subprocess
import sys

from tests.support.paths import ROOT


def test_sentry_records_the_same_with_parking() -> None:
    """In a process of its own, because Sentry changes Starlette's classes."""
    command = [sys.executable, "-m", "tests.uvicorn.with_sentry"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plain, parking = done.stdout.splitlines()
    assert plain == parking == "sentry got ['GET: ok after the wait']"
    assert "because sentry_sdk." in done.stderr
    assert "leave it so" in done.stderr
