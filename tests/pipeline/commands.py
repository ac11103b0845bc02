"""`purgatory pipeline` as a user runs it, in a process of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

NOISE = re.compile("incubator|log4j|log level|adjust logging|NativeCodeLoader|Picked up")


def command(*arguments: str | Path) -> list[str]:
    """The words of the command."""
    return [sys.executable, "-m", "purgatory", "pipeline", *map(str, arguments)]


def pipeline(*arguments: str | Path, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run it with these variables of the environment, and without those that the tests' own Spark has."""
    environment = {name: value for name, value in os.environ.items() if "SPARK" not in name and "JAVA" not in name}
    environment |= variables
    while True:
        found = subprocess.run(
            command(*arguments), cwd=ROOT, capture_output=True, text=True, env=environment, check=False
        )
        # Spark gives the process of a stream's sink ten seconds to start, which a busy machine may exceed.
        if "Python worker failed to connect back" not in found.stderr:
            break
    assert found.returncode == code, found.stdout + found.stderr
    assert "Traceback" not in found.stderr, found.stderr
    assert not NOISE.search(found.stdout + found.stderr)
    return found
