"""The command `purgatory serve`, in a process of its own."""

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from purgatory.__main__ import main
from purgatory.streams import command
from purgatory.streams.settings import Settings
from tests.streams.processes import running
from tests.streams.serving import serving
from tests.support.paths import ROOT
from tests.support.servers import program

COMMAND = [sys.executable, "-m", "purgatory", "serve"]


def refused(*options: str) -> str:
    """The last line of a command that exits at once."""
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--port", "65536"], "must be a port from 0 to 65535, not 65536"),
        (["--workers", "2"], "--workers needs a --database"),
        (["--demo", "--workers", "2", "--database", "postgresql://127.0.0.1:1/x"], "--demo is for one process"),
        (["--check", "--database", "postgresql://127.0.0.1:1/x"], "--check is for SQLite: check PostgreSQL with"),
        (["--database", "mysql://x"], "must be like postgresql://"),
        (["--url", "ftp://x"], "must be like https://streams.example.org, not ftp://x"),
        (["--allowed-host", "foo:80"], "must be a host name without scheme and port, or *, not foo:80"),
        (["--append-rate", "0"], "must be more than 0 and finite, not 0"),
        (["--max-body", "0"], "must be at least 1 and less than 2**53, not 0"),
        (["--max-body", "1e6"], "must be an integer, not 1e6"),
        (["--heartbeat", "x"], "must be a number, not x"),
        (["--journal", "/proc/nothing", "--instance", "2026-11"], "--instance: instance '2026-11' looks like a number"),
        (["--journal", "/dev/null"], "cannot use /dev/null"),
        (["--data", "/proc/nothing"], "cannot use /proc/nothing"),
        (["--database", "postgresql://u:secret@127.0.0.1:1/x"], "cannot use the database"),
    ],
)
def test_bad_options_are_refused(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", *options])
    said = f"{ended.value.code} {capsys.readouterr().err}"  # a code that is a text is printed
    assert message in said
    assert "secret" not in said


@pytest.mark.parametrize(
    ("database", "place"),
    [
        (None, "/data"),
        ("postgresql://u:secret@db.example:5433/streams", "PostgreSQL, streams on db.example"),
        ("postgresql:///", "PostgreSQL, its default database on this machine"),
    ],
)
def test_place_of_the_data_is_named_without_a_password(database: str | None, place: str) -> None:
    assert command._place(Settings(data="/data", database=database)) == place


@pytest.mark.parametrize(
    ("host", "warns"), [("127.0.0.1", False), ("localhost", False), ("::1", False), ("0.0.0.0", True)]
)
def test_server_that_others_reach_says_that_it_has_no_passwords(
    host: str, warns: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(settings: Settings, workers: int, host: str, port: int, reserved: socket.socket, **options: Any) -> None:
        reserved.close()

    monkeypatch.setattr(command, "serve", ended)
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)
    main(["serve", "--data", str(tmp_path), "--host", host, "--port", "0"])
    first, *others = capsys.readouterr().err.splitlines()
    assert first == f"the data is in {tmp_path}"
    assert [line.partition(":")[0] for line in others] == (
        [f"anybody who reaches {host} may read, write and delete"] if warns else []
    )


def test_command_serves_and_logs(tmp_path: Path) -> None:
    with running(tmp_path, "--access-log", "--allowed-origin", "*") as server:
        response = httpx.put(f"{server.url}/v1/stream/a", headers={"Origin": "http://page.example"}, timeout=60)
        assert response.headers["access-control-allow-origin"] == "*"
        assert "Stream-Next-Offset" in response.headers["access-control-expose-headers"]
        assert server.stop() == 0
    assert '"PUT /v1/stream/a HTTP/1.1" 201' in "".join(server.output)


def test_commands_of_the_readme_print_what_they_should(tmp_path: Path) -> None:
    """Those with curl, against another port."""
    text = (ROOT / "purgatory" / "streams" / "README.md").read_text()
    commands = [line for line in text.splitlines() if line.startswith("curl ")]
    assert len(commands) == 4
    program("curl", "curl")
    with serving(data=str(tmp_path)) as server:
        output = []
        for command in commands:
            line = command.replace("http://localhost:4437", server.url).replace("curl ", "curl -s --max-time 3 ")
            output.append(subprocess.run(line, shell=True, capture_output=True, text=True, check=False).stdout)
    assert output[:3] == ["", "", "hello"]
    assert output[3].startswith("event: data\ndata:hello\n\nevent: control\n")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "streams.sqlite").write_bytes(b"x" * 5000)
    assert "cannot use" in refused("--data", str(tmp_path))


def test_a_second_server_is_refused_even_if_the_lock_file_is_removed(tmp_path: Path) -> None:
    with running(tmp_path):
        assert f"another server uses {tmp_path}" in refused("--data", str(tmp_path))
        (tmp_path / "lock").unlink()
        assert f"another server uses {tmp_path}" in refused("--data", str(tmp_path))


def test_a_damaged_database_is_found_by_check(tmp_path: Path) -> None:
    with running(tmp_path) as server, httpx.Client(base_url=server.url) as http:
        for number in range(50):
            http.put(f"/v1/stream/{number}", content="x" * 10_000, headers={"Content-Type": "text/plain"})
    with running(tmp_path, "--check") as server, httpx.Client(base_url=server.url) as http:
        assert http.get("/health").json()["streams"] == 50
    assert any(f"checking the database in {tmp_path}" in line for line in server.output)
    file = tmp_path / "streams.sqlite"
    content = bytearray(file.read_bytes())
    middle = len(content) // 2 // 8192 * 8192
    content[middle : middle + 8192] = b"\xff" * 8192
    file.write_bytes(content)
    assert "the database is damaged: " in refused("--data", str(tmp_path), "--port", "0", "--check")
