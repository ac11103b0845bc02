"""The types of public names are known to type checkers other than mypy."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

COMMANDS = ("purgatory.bench.", "purgatory.streams.", "purgatory.spark.", "purgatory.pipeline.")
"""The packages of commands. Their modules are no interface, and PyArrow, which they show, has no types."""


def test_all_public_types_are_known_to_pyright() -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "pyright", "--verifytypes", "purgatory", "--ignoreexternal", "--outputjson"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    known = {each["name"]: each["isTypeKnown"] for each in symbols if each["isExported"]}
    assert known["purgatory.DelayedOperationPurgatory"]
    assert not [name for name, is_known in known.items() if not is_known and not name.startswith(COMMANDS)]
