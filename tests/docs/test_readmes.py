"""The code of every README runs as it stands there, and prints its comments; every command is known to a test."""

import ast
import code
import contextlib
import inspect
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

READMES = sorted(
    path
    for folder in (ROOT, ROOT / "purgatory", ROOT / "examples", ROOT / "tests")
    for path in ([folder / "README.md"] if folder == ROOT else folder.rglob("README.md"))
)
PAGES = [*READMES, ROOT / "CONTRIBUTING.md"]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


ON_SPARK = ROOT / "purgatory" / "spark" / "README.md"
"""Its code runs in `tests/pipeline/test_stream_source.py`."""


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_each_block_is_code_or_a_command_that_is_run(page: Path) -> None:
    languages = re.findall(r"^```(.*)$", page.read_text(), re.MULTILINE)[::2]
    assert set(languages) <= {"python", "sh", "text"}


@pytest.mark.parametrize(
    ("page", "block"),
    [pytest.param(page, each, id=name(page)) for page in PAGES if page != ON_SPARK for each in blocks(page, "python")],
)
async def test_code_runs_and_prints_its_comments(
    page: Path, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        # As `python -m asyncio` does: await is allowed at the top level.
        running = eval(compile(block, name(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), {"__name__": "readme"})
        if inspect.isawaitable(running):
            await running
    printed = output.getvalue().splitlines()
    assert printed
    for line in printed:
        assert f"# {line}\n" in block


class Console(code.InteractiveConsole):
    """`python -m asyncio`, without the execution of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.compile.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

    def runcode(self, code: object) -> None:
        """Run nothing."""


@pytest.mark.parametrize(
    ("page", "block"), [pytest.param(page, each, id=name(page)) for page in PAGES for each in blocks(page, "python")]
)
def test_code_can_be_pasted_into_the_console(page: Path, block: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Up to CPython 3.12 the console takes an empty line, and nothing else, as the end of a class or a loop."""
    console = Console()
    lines = [console.push(line) for line in [*block.splitlines(), ""]]
    assert not lines[-1]  # complete
    assert not capsys.readouterr().err


PRINTED = {
    ".venv/bin/python -m examples.job_queue": "jobs done: [0, 1, 2, 3, 4, 5, 6, 7, 8]\n",
    ".venv/bin/python -m examples.quorum_writes": "two replicas: True\none of them has stopped: False\n",
    ".venv/bin/python -m examples.production --metrics-port 0": "rows written: ",
    ".venv/bin/pytest -q examples/testing": "10 passed",
}
"""Short programs, and a part of their output."""

ENVIRONMENT = "python3 -m venv .venv && .venv/bin/pip install -e "

CI = ".ci/everything"

TESTED = {
    ENVIRONMENT + "'.[server]' && .venv/bin/purgatory serve --demo": ("tests/streams/screenshots.py", "--demo"),
    ENVIRONMENT + "'.[test]' && .venv/bin/pytest --cov -n 4": (CI, "README.md"),
    ENVIRONMENT + "'.[test]' && .venv/bin/pre-commit install": ("tests/docs/test_habits.py", "pre_commit"),
    ENVIRONMENT + "'.[bench]' && .venv/bin/purgatory bench --quick": ("tests/bench/test_bench.py", "--quick"),
    ".ci/run": (".ci/run", CI),
    ".venv/bin/python -m tests.docs.reference": (CI, "tests.docs.reference"),
    ".ci/steady": (".ci/steady", "<!-- test command -->"),
    ".venv/bin/pytest -q -n 4 tests/core tests/promises tests/family": (
        ".ci/core",
        "tests/promises tests/core tests/family",
    ),
    ".venv/bin/python purgatory/_core/build.py": ("tests/support/sanitized.py", "purgatory/_core/build.py"),
    "python purgatory/_core/build.py": ("tests/support/sanitized.py", "purgatory/_core/build.py"),
    ".venv/bin/python -m tests.support.sanitized": ("tests/core/test_sanitized.py", "tests.support.sanitized"),
    "LEAK_TIMES=1000000 .venv/bin/pytest --timeout 7200 tests/core/test_leaks.py": (
        "tests/core/test_leaks.py",
        "LEAK_TIMES",
    ),
    "PYTHONASYNCIODEBUG=1 .venv/bin/uvicorn --port 8000 tests.asgi.sync_handlers:app": (
        "tests/asgi/test_sync_handlers.py",
        "PYTHONASYNCIODEBUG",
    ),
    ".venv/bin/pytest -q tests/core/test_injection.py": (".ci/core", "injection"),
    ".venv/bin/pytest -q tests/relay": (CI, "README.md"),
    ".venv/bin/purgatory bench --quick": ("tests/bench/test_bench.py", "--quick"),
    "git worktree add --detach ../before main && .venv/bin/python ../before/purgatory/_core/build.py": (
        "tests/support/sanitized.py",
        "purgatory/_core/build.py",
    ),
    ".venv/bin/purgatory bench --baseline ../before --loop asyncio callback": (
        "tests/bench/test_baseline.py",
        "--baseline",
    ),
    ".venv/bin/pip install -e '.[server,spark]' httpx": ("tests/package/test_extras.py", "test_each_part_imports"),
    ".venv/bin/purgatory serve --journal journal --instance web-1 --long-poll-timeout 2": (
        "tests/pipeline/test_command.py",
        "--journal",
    ),
    ".venv/bin/python -m examples.stream_traffic --seconds 60": ("tests/pipeline/test_command.py", "stream_traffic"),
    ".venv/bin/purgatory pipeline replay journal replayed --purgatory read --tick 0.001,0.005,0.01,0.02 "
    "--wheel-size 20,64": ("tests/pipeline/test_command.py", 'commands["replay"][1:]'),
    ".venv/bin/purgatory pipeline report journal report --replay replayed --timeout-rate 0.1": (
        "tests/pipeline/test_command.py",
        'commands["report"][1:]',
    ),
    ".venv/bin/python -m purgatory.uvicorn examples.long_poll:app": (
        "tests/examples/test_long_poll.py",
        "examples.long_poll:app",
    ),
    "curl 'http://127.0.0.1:8000/topics/news?offset=0' & sleep 1; "
    "curl -d hello http://127.0.0.1:8000/topics/news; wait": ("tests/examples/test_long_poll.py", "/topics/news"),
    "curl -d world 'http://127.0.0.1:8000/topics/news?acks=1' & sleep 1; "
    "curl 'http://127.0.0.1:8000/topics/news?offset=2&replica=a&wait=0'; wait": (
        "tests/examples/test_long_poll.py",
        "curl",
    ),
    ".venv/bin/python -m purgatory.uvicorn examples.blocking_queries.app:app": (
        "tests/examples/test_blocking_queries.py",
        "examples.blocking_queries.app:app",
    ),
    "curl 'http://127.0.0.1:8000/?index=0' & sleep 1; curl -X PUT -d blue http://127.0.0.1:8000/; wait": (
        "tests/examples/test_blocking_queries.py",
        "client.put",
    ),
    ".venv/bin/python -m examples.idle_connections --timeout 5": (
        "tests/examples/test_examples.py",
        '"examples.idle_connections", "--timeout", "5"',
    ),
    ".venv/bin/python -m examples.consumer_group": (
        "tests/examples/test_consumer_group.py",
        '"-m", "examples.consumer_group"',
    ),
    ".venv/bin/python -m examples.several_processes wait redis://127.0.0.1": (
        "tests/examples/test_examples.py",
        "examples.several_processes",
    ),
    ".venv/bin/python -m examples.several_processes increase redis://127.0.0.1": (
        "tests/examples/test_examples.py",
        "examples.several_processes",
    ),
    ".venv/bin/python -m tests.support.parked --clients 18000": ("tests/uvicorn/test_frameworks.py", "support.parked"),
    ".venv/bin/pip install -e '.[server]' && .venv/bin/purgatory serve": ("tests/streams/test_command.py", '"serve"'),
    "curl -X PUT -H 'Content-Type: text/plain' http://localhost:4437/v1/stream/news": (
        "tests/streams/test_command.py",
        "curl",
    ),
    "curl -X POST -H 'Content-Type: text/plain' -d 'hello' http://localhost:4437/v1/stream/news": (
        "tests/streams/test_command.py",
        "curl",
    ),
    "curl 'http://localhost:4437/v1/stream/news?offset=-1'": ("tests/streams/test_command.py", "curl"),
    "curl -N 'http://localhost:4437/v1/stream/news?offset=-1&live=sse'": ("tests/streams/test_command.py", "curl"),
    ".venv/bin/pip install -e '.[bench]' && .venv/bin/purgatory bench --streams": (
        "tests/bench/test_streams.py",
        '"bench", "--streams"',
    ),
    ".venv/bin/python -m tests.support.soak": ("tests/core/test_soak.py", "tests.support.soak"),
    ".venv/bin/python -m tests.support.stalls": ("tests/promises/test_6_bounded_turns.py", "stalls.rows"),
    "WORLDS=400 .venv/bin/pytest --timeout 7200 tests/pipeline/test_known_truth.py": (
        "tests/pipeline/test_known_truth.py",
        'os.environ.get("WORLDS"',
    ),
    'HYPOTHESIS_PROFILE=searching .venv/bin/pytest --timeout 7200 -k "model or properties or watchers"': (
        "tests/conftest.py",
        "searching",
    ),
    "SCHEMATHESIS_EXAMPLES=400 .venv/bin/pytest tests/streams/test_openapi.py": (
        "tests/streams/test_openapi.py",
        "SCHEMATHESIS_EXAMPLES",
    ),
    'for n in $(seq 50); do .venv/bin/pytest -q -x -k "loops or threads or early" || break; done': (CI, "README.md"),
}
"""Commands that take long, or need a server or a package index: a file that runs them or a short form, and its text."""


def commands(page: Path) -> list[str]:
    lines = "".join(blocks(page, "sh")).replace("\\\n", "").splitlines()
    return [re.sub(r"\s+# .*", "", line).strip() for line in lines]


@pytest.mark.parametrize(
    ("page", "command"), [pytest.param(page, command, id=name(page)) for page in PAGES for command in commands(page)]
)
def test_command_is_run_by_a_test(page: Path, command: str) -> None:
    if command not in PRINTED:
        file, part = TESTED[command]
        assert part in (ROOT / file).read_text()


@pytest.mark.parametrize("command", PRINTED)
def test_short_program_prints_its_result(command: str, tmp_path: Path) -> None:
    arguments = command.removeprefix(".venv/bin/").split()
    if arguments[0] == "python":
        del arguments[:2]
    if arguments[0] == "examples.production":
        arguments += ["--journal", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=100, check=True
    )
    assert PRINTED[command] in done.stdout
    assert not done.stderr


LINKS = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HOME = "https://github.com/asyncio-purgatory/asyncio-purgatory/blob/main/"
RAW = "https://raw.githubusercontent.com/asyncio-purgatory/asyncio-purgatory/main/"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_of_the_project(page: Path) -> None:
    for link in (link.partition("#")[0] or "#" for link in LINKS.findall(page.read_text())):
        target = link.removeprefix(HOME).removeprefix(RAW)
        if target == link:
            if link.startswith(("http://", "https://", "#")):
                continue
            assert page != ROOT / "README.md", f"{link} is relative: it does not lead anywhere on PyPI"
            path = page.parent / link
        else:
            path = ROOT / target
        assert path.exists(), link


def test_readme_has_at_most_200_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200
