"""README's code runs as it stands there, and its requests get the answers shown."""

import ast
import asyncio
import contextlib
import inspect
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import purgatory
from purgatory.bench import report
from purgatory.bench.scenarios import SCENARIOS
from purgatory.bench.summary import summary
from tests.asgi.processes import serving
from tests.support.paths import ROOT
from tests.support.server_process import ServerProcess, running

README = (ROOT / "README.md").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


PRINTED = [
    "['hello']",
    "a quarter of a second",
    "1 42",
    "1 1",
    "b",
    "Delay ('client 7',) expired",
    "True",
    "1",
]


@pytest.mark.parametrize(
    ("block", "printed"),
    list(zip(_blocks("python"), PRINTED, strict=True)),
)
async def test_the_code_runs_and_prints_its_comments(
    block: str, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert printed in block
    monkeypatch.chdir(tmp_path)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        # As `python -m asyncio` does: await is allowed at the top level.
        running = eval(compile(block, "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), {"__name__": "readme"})
        if inspect.isawaitable(running):
            await running
    assert output.getvalue() == printed + "\n"


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_each_curl_gets_the_answer_shown(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        requests = [block for block in _blocks("sh") if block.startswith("curl")]
        answers = [json.loads(block) for block in _blocks("json")]
        assert len(requests) == len(answers) > 3
        for request, answer in zip(requests, answers, strict=True):
            assert await _curl(server, request) == answer


async def _curl(server: ServerProcess, command: str) -> Any:
    words = shlex.split(command)
    url = words[-1].replace("http://127.0.0.1:8000", server.url)
    async with server.client() as client:
        response = await (client.post(url, content=words[2]) if words[1] == "-d" else client.get(url))
    return response.json()


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_the_app_shown_answers_a_waiting_client(tmp_path: Path) -> None:
    app = re.search(r"<!-- app.py -->\n```py\n(.*?)```", README, re.DOTALL)
    assert app is not None
    (tmp_path / "app.py").write_text(app[1])
    with serving("uvicorn", "--port", "0", "--app-dir", str(tmp_path), "app:app") as server:
        async with server.client() as client:
            poll = asyncio.create_task(client.get("/", params={"index": 2}))
            while not poll.done():
                await client.post("/")
            assert (await poll).json() >= 3


def test_every_public_name_is_documented() -> None:
    for name in purgatory.__all__:
        documentation = inspect.getdoc(getattr(purgatory, name))
        assert documentation, name


def test_the_parameters_shown_are_the_parameters_there_are() -> None:
    shown = re.search(r"`DelayedOperationPurgatory\((name=.*?)\)`", README)
    assert shown is not None
    parameters = inspect.signature(purgatory.DelayedOperationPurgatory).parameters.values()
    signature = ", ".join(f"{parameter.name}={parameter.default!r}" for parameter in parameters).replace("'", '"')
    assert shown[1].replace("*, ", "") == signature
    assert [parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY] == ["name"]


def test_importing_the_core_needs_the_standard_library_alone() -> None:
    core = Path(purgatory.__file__).parent
    imported = {
        (alias.name if isinstance(node, ast.Import) else node.module or "").split(".")[0]
        for path in [*core.glob("*.py"), *(core / "timer").glob("*.py")]  # each other folder has an extra
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert imported <= sys.stdlib_module_names | {"purgatory"}
    command = "import purgatory, sys; print([name for name in sys.modules if name.startswith('purgatory.bench')])"
    assert subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout == "[]\n"


NOT_MEASURED_YET = {"idle", "queue", "threads"}
"""Scenarios that are newer than the last full run."""


def test_the_figures_are_those_that_were_measured() -> None:
    measured = ROOT / "purgatory" / "bench" / "measured"
    about, cases = report.load(measured / "results.json")
    assert list(cases) == [name for name in SCENARIOS if name not in NOT_MEASURED_YET]
    assert (about["rounds"], about["missing"]) == (3, {})
    for name in cases:
        assert [each.case for each in cases[name]] == SCENARIOS[name].cases(False)
    table = report.markdown(summary(cases, "asyncio")).partition("\n\n")[2]
    assert table in README
    assert f"`{about['command']}`" in README
    for picture in re.findall(r"\(purgatory/bench/measured/(\S+\.png)\)", README):
        assert (measured / picture).exists()
