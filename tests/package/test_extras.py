"""Names and modules that need an extra, and a core that needs none."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import purgatory
import purgatory.metrics
import purgatory.relay
import purgatory.streams
from tests.support.paths import ROOT


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("purgatory.metrics.prometheus", "prometheus_client", "metrics"),
        ("purgatory.metrics.opentelemetry", "opentelemetry", "metrics"),
        ("purgatory.journal", "pyarrow", "journal"),
        ("purgatory.relay.redis", "redis", "relay"),
        ("purgatory.relay.postgres", "asyncpg", "relay"),
        ("purgatory.relay.retries", "tenacity", "relay"),
        ("purgatory.uvicorn", "uvicorn", "server"),
        ("purgatory.spark.session", "pyspark", "spark"),
        ("purgatory.spark.source", "pyspark", "spark"),
        ("purgatory.spark.source", "urllib3", "spark"),
    ],
)
def test_a_missing_requirement_is_reported_with_its_extra(
    module: str, missing: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    importlib.import_module(module)
    for name in list(sys.modules):
        if name == module or name.startswith((f"{module}.", f"{missing}.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ModuleNotFoundError, match=rf"asyncio-purgatory\[{extra}\]"):
        importlib.import_module(module)


def test_importing_the_core_needs_the_standard_library_alone() -> None:
    core = Path(purgatory.__file__).parent
    imported = {
        (alias.name if isinstance(node, ast.Import) else node.module or "").split(".")[0]
        for folder in (".", "_core", "_loop", "_timer")  # each other folder has an extra
        for path in (core / folder).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert imported <= sys.stdlib_module_names | {"purgatory"}


def test_importing_the_core_imports_nothing_else() -> None:
    command = "import sys; before = set(sys.modules); import purgatory; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    imported = done.stdout.split()
    assert "purgatory" in imported
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names | {"purgatory"}
    assert not [name for name in imported if name.startswith("purgatory.bench")]


def parts() -> list[tuple[str, list[str]]]:
    """The parts of CONTRIBUTING's table that need extras, and these."""
    rows = (ROOT / "CONTRIBUTING.md").read_text().partition("| part of the wheel | extra |")[2].partition("\n\n")[0]
    found = re.findall(r"^\| `(\w+)/` \| (.*) \|$", rows, re.MULTILINE)
    return [(f"purgatory.{part}", re.findall("`(.*?)`", extras)) for part, extras in found]


@pytest.mark.parametrize(("part", "extras"), [*parts(), ("purgatory.streams.command", ["server"])], ids=str)
def test_each_part_imports_with_its_extra_alone(part: str, extras: list[str]) -> None:
    command = [sys.executable, "-m", "tests.package.alone", part, *extras]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("missing", ["starlette", "prometheus_client"])
def test_streams_without_their_extra_say_what_to_install(missing: str) -> None:
    without = f"""
import sys
import purgatory.streams
print(sorted({{"starlette", "uvicorn", "prometheus_client", "aiohttp"}} & set(sys.modules)))
sys.modules[{missing!r}] = None
from purgatory.streams import durable_streams
"""
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[]\n", 1)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: ")
    assert "pip install -e '.[server]' in a clone, or pip install 'asyncio-purgatory[server]" in last


def test_a_part_without_its_extra_does_not_import() -> None:
    command = [sys.executable, "-m", "tests.package.alone", "purgatory.metrics", "journal"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "opentelemetry" in done.stderr
    assert "pip install -e '.[metrics]' in a clone, or pip install" in done.stderr


@pytest.mark.parametrize("package", [purgatory.metrics, purgatory.relay, purgatory.streams])
def test_public_names_of_lazy_packages_can_be_imported(package: object) -> None:
    for name in vars(package)["__all__"]:
        assert getattr(package, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'Missing'"):
        getattr(package, "Missing")  # noqa: B009 - mypy refuses the attribute
