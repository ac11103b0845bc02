"""The version, the command and the names that need an extra."""

import subprocess
import sys
from importlib.metadata import version

import pytest

import purgatory
import purgatory.metrics
import purgatory.relay
from purgatory.__main__ import main


def test_version_is_the_distributions() -> None:
    assert purgatory.__version__ == version("asyncio-purgatory")


def test_command_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"asyncio-purgatory {purgatory.__version__}\n"


@pytest.mark.parametrize("package", [purgatory.metrics, purgatory.relay])
def test_each_public_name_is_there(package: object) -> None:
    for name in vars(package)["__all__"]:
        assert getattr(package, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'Missing'"):
        getattr(package, "Missing")  # noqa: B009 - mypy refuses the attribute


@pytest.mark.parametrize(
    ("statement", "missing", "extra"),
    [
        ("from purgatory.metrics import PurgatoryCollector", "prometheus_client", "metrics"),
        ("from purgatory.metrics import PurgatoryInstruments", "opentelemetry", "metrics"),
        ("from purgatory.relay import RedisBroker", "redis", "relay"),
        ("from purgatory.relay import PostgresBroker", "asyncpg", "relay"),
        ("import purgatory.__main__; purgatory.__main__.main(['bench', '--quick'])", "rich", "bench"),
        ("import purgatory.__main__; purgatory.__main__.main(['pipeline', '--help'])", "pyspark", "spark"),
    ],
)
def test_name_without_its_extra_names_the_extra(statement: str, missing: str, extra: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; {statement}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert f"pip install 'asyncio-purgatory[{extra}]'" in done.stderr
