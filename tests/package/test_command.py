"""The command `purgatory` itself: its version, and its hints where an extra is missing."""

import importlib
import subprocess
import venv
from importlib.metadata import version
from pathlib import Path

import pytest

import purgatory
from purgatory.__main__ import main
from purgatory._loop import errors
from tests.support.paths import ROOT


def test_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    assert purgatory.__version__ == version("asyncio-purgatory")
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"asyncio-purgatory {purgatory.__version__}, core in {purgatory.__core__}\n"


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without any package."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, symlinks=True)
    return folder / "bin" / "python"


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [(["bench"], "bench"), (["bench", "--quick"], "bench"), (["pipeline", "report", "--help"], "spark")],
)
def test_missing_extra_is_named_whatever_the_options(bare_python: Path, arguments: list[str], extra: str) -> None:
    command = [str(bare_python), "-m", "purgatory", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1
    assert f"pip install -e '.[{extra}]' in a clone, or pip install 'asyncio-purgatory[{extra}] @ git+" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_lists_commands_with_their_missing_extras(bare_python: Path) -> None:
    command = [str(bare_python), "-m", "purgatory", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.count("asyncio-purgatory[") == done.stdout.count("pip install -e") == 3


def test_an_import_without_the_mark_of_this_distribution_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(purgatory, "__distribution__")
    before = purgatory.PurgatoryError
    with pytest.raises(ImportError, match="a circuit breaker, has overwritten a part of asyncio-purgatory"):
        importlib.reload(errors)
    assert purgatory.PurgatoryError is before
