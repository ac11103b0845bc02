"""The code of every page runs as a file and prints its comments, and options and links that are shown exist."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from purgatory.__main__ import main
from tests.support.paths import ROOT

README = ROOT / "README.md"
PAGES = sorted(
    path
    for pattern in ("*.md", "purgatory/**/*.md", "examples/**/*.md", "tests/**/*.md")
    for path in ROOT.glob(pattern)
    if not {"measured", "node_modules"} & set(path.parts)
)
ELSEWHERE = [
    *(ROOT / "purgatory" / "asgi" / f"{framework}.md" for framework in ("DJANGO", "LITESTAR", "QUART")),
    ROOT / "purgatory" / "spark" / "README.md",
    ROOT / "purgatory" / "uvicorn" / "APPLICATIONS.md",
    ROOT / "examples" / "tutorial" / "README.md",
]
"""Their code runs in `tests/asgi/test_frameworks.py`, `tests/pipeline/test_stream_source.py` and
`tests/examples/test_tutorial.py`."""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_each_block_is_code_or_a_command_or_text(page: Path) -> None:
    languages = re.findall(r"^```(.*)$", page.read_text(), re.MULTILINE)[::2]
    assert set(languages) <= {"python", "sh", "sql", "text"}


@pytest.mark.parametrize(
    ("page", "block"),
    [
        pytest.param(page, each, id=name(page))
        for page in PAGES
        if page not in ELSEWHERE
        for each in blocks(page, "python")
    ],
)
def test_code_runs_as_a_file_and_prints_its_comments(page: Path, block: str, tmp_path: Path) -> None:
    file = tmp_path / "readme.py"
    file.write_text(block)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, file], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert re.search(rf"# {re.escape(line)}$", block, re.MULTILINE), line


def commands() -> list[tuple[Path, str]]:
    """The uses of the command `purgatory` in all pages."""
    found = []
    for page in PAGES:
        for line in "".join(blocks(page, "sh")).replace("\\\n", "").splitlines():
            found += [(page, use) for use in re.findall(r"\.venv/bin/purgatory (.*?)(?:&&|#|$)", line)]
    return found


@pytest.mark.parametrize(("page", "command"), [pytest.param(*each, id=each[1]) for each in commands()])
def test_options_that_are_shown_exist(page: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command)
    subcommands = words[: 2 if words[0] == "pipeline" else 1]
    with pytest.raises(SystemExit, match="0"):
        main([*subcommands, "--help"])
    options = [word for word in words if word.startswith("--")]
    assert set(options) <= set(re.findall(r"--[\w-]+", capsys.readouterr().out))


PRINTED = {
    "examples.job_queue": "jobs done: [0, 1, 2, 3, 4, 5, 6, 7, 8]\n",
    "examples.quorum_writes": "two replicas: True\none of them has stopped: False\n",
    "tests.support.soak --operations 20000 --seconds 1": "20,000 operations in an hour of virtual time: memory ",
}
"""Short programs, and a part of their output."""


@pytest.mark.parametrize("command", PRINTED)
def test_short_program_prints_its_result(command: str) -> None:
    arguments = [sys.executable, "-m", *command.split()]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True)
    assert PRINTED[command] in done.stdout
    assert not done.stderr


LINKS = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|^\[[\w-]+\]: (\S+)$", re.MULTILINE)
HOME = "https://github.com/asyncio-purgatory/asyncio-purgatory/blob/main/"
RAW = "https://raw.githubusercontent.com/asyncio-purgatory/asyncio-purgatory/main/"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_and_headings_of_the_project(page: Path) -> None:
    for link in (inline or defined for inline, defined in LINKS.findall(page.read_text())):
        target, _, heading = link.removeprefix(HOME).removeprefix(RAW).partition("#")
        if target.startswith(("http://", "https://")):
            continue
        if link.startswith((HOME, RAW)):
            path = ROOT / target
        else:
            assert page != README or not target, f"{link} is relative: it does not lead anywhere on PyPI"
            path = page.parent / target if target else page
        assert path.exists(), link
        if heading:
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            assert heading in [re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings], link


def test_links_of_the_readme_are_defined() -> None:
    text = README.read_text()
    used = set(re.findall(r"\]\[([\w-]+)\]", text))
    assert used == set(re.findall(r"^\[([\w-]+)\]: ", text, re.MULTILINE))


def test_readme_is_short() -> None:
    lines = [line for line in README.read_text().splitlines() if not re.match(r"\[[\w-]+\]: ", line)]
    assert max(map(len, lines)) <= 100
    # A line of links alone, a badge and a picture among them, isn't counted.
    assert (
        len([line for line in lines if not re.fullmatch(r"(!?\[+[^]]*\]+(\[[\w-]+\])*[\]\[\w-]*[ ·]*)+", line)]) <= 130
    )
