"""uvicorn's private names: all are in one module, and one that changes leaves uvicorn as it is without parking."""

import ast
import dis
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import httpx
import pytest
import uvicorn

import purgatory
from purgatory.uvicorn import names
from tests.support.paths import ROOT
from tests.support.servers import reserved_port

PACKAGE = Path(purgatory.__file__).parent
FILES = [*(PACKAGE / "uvicorn").glob("*.py"), PACKAGE / "streams/http/protocol.py"]

APP = """
from purgatory import DelayedOperationPurgatory
from purgatory.asgi import DelayedResponse
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

async def wait(request):
    waiting = request.app.state.purgatory.wait_for(lambda: False, "key", timeout=0.01)
    return DelayedResponse(waiting, lambda _: PlainTextResponse("waited"))

app = Starlette(routes=[Route("/", wait)])
app.state.purgatory = DelayedOperationPurgatory("waiting")
"""


@pytest.fixture
def temperature() -> None:
    """There is no connection to be warm or cold."""


def own_names(kind: type) -> Iterator[str]:
    """The attributes of a class of uvicorn's, and those that its constructor sets."""
    yield from vars(kind)
    for instruction in dis.get_instructions(kind.__init__):  # type: ignore[misc]
        if instruction.opname == "STORE_ATTR":
            yield instruction.argval


def test_every_name_that_is_used_is_among_those_that_are_checked() -> None:
    known = {name for kind in names.USED for name in own_names(kind) if not name.startswith("__")}
    # Those that asyncio documents, and one that an object of ours has too.
    known -= set(dir(names.HttpToolsProtocol.__mro__[1])) | {"data_received", "access_logger"}
    checked = {name for used in names.USED.values() for name in used.split()}
    for path in FILES:
        used = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        assert used & known <= checked, path


def test_uvicorns_modules_are_imported_in_one_place() -> None:
    for path in FILES:
        if path.name != "names.py":
            tree = ast.parse(path.read_text())
            found = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
            assert {each for each in found if each.startswith("uvicorn.")} <= {"uvicorn.protocols.http.auto"}, path


@pytest.mark.skipif(not (ROOT / "purgatory").is_dir(), reason="needs the page")
def test_the_oldest_release_is_that_of_the_extra_and_the_page_says_which_were_tested() -> None:
    assert f"uvicorn {names.TESTED}." in " ".join((ROOT / "purgatory/uvicorn/APPLICATIONS.md").read_text().split())
    oldest, newest = names.TESTED.split(" to ")
    assert f'"uvicorn>={oldest}"' in (ROOT / "pyproject.toml").read_text()
    assert [int(part) for part in newest.split(".")] > [int(part) for part in oldest.split(".")]


def answer(url: str) -> str:
    """The answer of a server that starts."""
    while True:
        try:
            return httpx.get(url).text
        except httpx.ConnectError:
            time.sleep(0.05)


def copied(folder: Path, before: str, after: str) -> None:
    """Copy uvicorn to a folder, with another name."""
    copy = folder / "uvicorn"
    shutil.copytree(Path(uvicorn.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for path in copy.rglob("*.py"):
        path.write_text(path.read_text().replace(before, after))
        if before in path.name:
            path.rename(path.with_name(path.name.replace(before, after)))


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("STATUS_LINE", "STATUS_LINES", "cannot import name 'STATUS_LINE'"),
        ("flow_control", "flow", "No module named 'uvicorn.protocols.http.flow_control'"),
        ("message_event", "message", "there is no RequestResponseCycle.message_event"),
        ("timeout_keep_alive_task", "keep_alive_timer", "there is no HttpToolsProtocol.timeout_keep_alive_task"),
        ("total_requests", "requests", "there is no ServerState.total_requests"),
    ],
)
def test_another_uvicorn_serves_without_parking_and_says_why(
    before: str, after: str, fault: str, tmp_path: Path
) -> None:
    copied(tmp_path, before, after)
    (tmp_path / "app.py").write_text(APP)
    port = reserved_port()
    command = [sys.executable, "-m", "purgatory.uvicorn", "app:app", "--port", str(port)]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert answer(f"http://127.0.0.1:{port}/") == "waited"
        finally:
            server.terminate()
        assert server.stderr is not None
        said = server.stderr.read()
    assert server.returncode == -signal.SIGTERM, said  # uvicorn raises it again, after its shutdown
    assert f"requests that wait are not parked, and keep their tasks: uvicorn {version('uvicorn')} is not like" in said
    assert fault in said
    assert said.count("not parked") == 2  # at the start, and with the first connection


def test_purgatory_serve_says_in_a_line_that_it_cannot_run(tmp_path: Path) -> None:
    copied(tmp_path, "message_event", "message")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-m", "purgatory", "serve", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(r"purgatory serve can't run: uvicorn \S+ is not like the releases .*\n", done.stderr), (
        done.stderr
    )
