"""The long-poll server as a command."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from examples.long_poll_server.write_timeout import set_write_timeout
from tests.support.paths import ROOT
from tests.support.server_process import running


def _run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "examples.long_poll_server", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_a_directory_is_used_by_one_server(tmp_path: Path) -> None:
    with running(tmp_path):
        second = _run("--port", "0", "--data", str(tmp_path))
    assert second.returncode == 1
    assert second.stderr == f"another server uses {tmp_path}: name another directory with --data\n"


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = _run("--data", str(tmp_path / "file"))
    assert (refused.returncode, refused.stderr) == (1, f"cannot use {tmp_path / 'file'}: File exists\n")
    (tmp_path / "messages.sqlite3").write_text("this is no database, although it is long enough to be taken for one")
    refused = _run("--data", str(tmp_path))
    assert refused.returncode == 1
    assert refused.stderr == f"cannot use the database in {tmp_path}: file is not a database\n"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--port", "70000"], "a port is a number from 0 to 65535, not 70000"),
        (
            ["--demo", "--workers", "2", "--database", "postgresql://localhost/test"],
            "--demo is for one process: the worker that starts it may not be the worker that shows it",
        ),
        (["--port", "http"], "invalid _port value: 'http'"),
        (["--max-pending", "0"], "must be at least 1, not 0"),
        (["--write-timeout", "0"], "must be more than 0 and at most 3600 seconds, not 0"),
        (["--publish-rate", "0"], "must be more than 0 and finite, not 0"),
        (["--publish-rate", "nan"], "must be more than 0 and finite, not nan"),
        *(
            (["--instance", name], "argument --instance: an instance is named by")
            for name in ("a/b", "日本", "a\nb", "..")
        ),
        (["--verbose"], "unrecognized arguments: --verbose"),
    ],
)
def test_bad_arguments(arguments: list[str], error: str) -> None:
    refused = _run(*arguments)
    assert refused.returncode == 2
    assert error in refused.stderr


def test_a_journal_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = _run("--data", str(tmp_path / "data"), "--journal", str(tmp_path / "file"))
    assert (refused.returncode, refused.stderr) == (1, f"cannot use {tmp_path / 'file'}: File exists\n")
    assert not (tmp_path / "data").exists()


def test_missing_socket_options_for_write_timeout_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in ("TCP_USER_TIMEOUT", "TCP_NOTSENT_LOWAT"):
        monkeypatch.delattr(socket, option, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        set_write_timeout(listening, 30)
