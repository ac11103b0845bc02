"""The contents of a wheel, and of each extra."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.support.paths import ROOT


def build(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    return subprocess.run(
        [*command, str(ROOT)], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = build(folder, PURGATORY_C="0")
    assert built.returncode == 0, built.stderr
    return next(folder.glob("*.whl"))


def first_column(page: Path, heading: str) -> set[str]:
    """The names in the first column of a table."""
    rows = page.read_text().partition(heading)[2].partition("\n\n")[0]
    return {
        name for cell in re.findall(r"^\| (`[^|]+) \|", rows, re.MULTILINE) for name in re.findall("`([^`]+)`", cell)
    }


def test_wheel_contains_the_parts_of_the_table(wheel: Path) -> None:
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert all(name.startswith("purgatory/") for name in names)
    assert "purgatory/py.typed" in names
    assert "purgatory/streams/page/index.html" in names
    assert not [name for name in names if "/measured/" in name or "/screenshots/" in name]
    parts = {f"{name.split('/')[1]}/" if name.count("/") > 1 else "*.py" for name in names if name.endswith(".py")}
    assert parts == first_column(ROOT / "CONTRIBUTING.md", "| part of the wheel | extra |")


def test_wheel_without_the_extension_is_for_all_platforms(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")


def test_wheel_built_without_a_compiler_has_the_core_in_python(tmp_path: Path) -> None:
    built = build(tmp_path, CC="/nonexistent")
    assert built.returncode == 0, built.stderr
    assert [path.name.partition("-py3-")[2] for path in tmp_path.iterdir()] == ["none-any.whl"]


def test_wheel_that_must_have_the_extension_fails_without_a_compiler(tmp_path: Path) -> None:
    built = build(tmp_path, CC="/nonexistent", PURGATORY_C="1")
    assert built.returncode == 1
    assert "/nonexistent" in built.stdout + built.stderr
    assert not list(tmp_path.iterdir())


def test_the_extension_is_not_built_for_a_free_threaded_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "purgatory" / "_speedups" / "build.py"))
    monkeypatch.setattr("sysconfig.get_config_var", {"Py_GIL_DISABLED": 1}.get)
    with pytest.raises(RuntimeError, match="needs the GIL"):
        script["build"](tmp_path)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler: apt install gcc")
def test_wheel_built_with_a_compiler_has_the_core_in_c(tmp_path: Path) -> None:
    built = build(tmp_path, PURGATORY_C="1")
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "there")
    command = [sys.executable, "-P", "-m", "purgatory", "--version"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "there"), "PURGATORY_PURE": "0"}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert told.stdout.endswith("core in C\n"), told


def test_each_extra_is_in_the_table() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    shown = first_column(ROOT / "README.md", "| extra, as in `asyncio-purgatory[server]` | adds |")
    assert shown | {"all", "dev", "docs", "test", "test-core"} == set(extras)


@pytest.mark.parametrize("module", ["purgatory.asgi", "purgatory.relay", "purgatory._core.operation"])
def test_import_names_the_other_distribution_that_has_overwritten_this_one(
    wheel: Path, tmp_path: Path, module: str
) -> None:
    """As after `pip install asyncio-purgatory purgatory`, whose second one is a circuit breaker."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    (tmp_path / "purgatory" / "__init__.py").write_text(
        '__version__ = "3.0.1"\nclass AsyncCircuitBreakerFactory: ...\n'
    )
    command = [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {module}"]
    imported = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert imported.returncode == 1
    assert "ImportError: another distribution that also imports as `purgatory`" in imported.stderr
