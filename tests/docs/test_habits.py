"""The hooks and the matrix."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT


def test_hooks_are_valid() -> None:
    command = [sys.executable, "-m", "pre_commit", "validate-config", str(ROOT / ".pre-commit-config.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("message", "passes"),
    [
        ("Name reschedule in the error\n\nIt said add().\n", True),
        ("Name reschedule in the error\n\nIt said add().\n\n# Please enter the commit message.\n", True),
        ("Name reschedule in the error\n", False),
        ("Name reschedule in the error\n\n# Please enter the commit message.\n# On branch main\n", False),
        (f"{'A subject of sixty-one characters':a<61}\n\nA body.\n", False),
    ],
)
def test_commit_message_has_a_short_subject_and_a_body(tmp_path: Path, message: str, passes: bool) -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    (pattern,) = re.findall(r"entry: '(.*)'\n.*\n        args: \[--multiline\]\n        stages: \[commit-msg\]", hooks)
    path = tmp_path / "message"
    path.write_text(message)
    command = [sys.executable, "-m", "pre_commit.languages.pygrep", "--multiline", pattern, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode == 0) == passes, done.stdout


def test_each_job_of_the_matrix_calls_what_ci_calls() -> None:
    run = (ROOT / ".ci" / "run").read_text()
    called = re.findall(r"run: (?:sudo )?(\.ci/\w+)", (ROOT / ".github" / "workflows" / "tests.yml").read_text())
    assert len(called) == 8
    for script in called:
        assert script in run
        assert os.access(ROOT / script, os.X_OK)
