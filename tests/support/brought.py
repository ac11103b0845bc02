"""The tests that another library brings in its source distribution, run by a pytest of their own."""

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path


def source(library: str, folder: Path, release: str | None = None) -> Path:
    """The source distribution of the installed release, or of another, unpacked in `folder`: pip downloads it."""
    release = release or version(library)
    unpacked = folder / f"{library}-{release}"
    if not unpacked.exists():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", library]
        subprocess.run([*command, "--dest", str(folder), f"{library}=={release}"], check=True)
        with tarfile.open(folder / f"{unpacked.name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return unpacked


def install(folder: Path, *requirements: str) -> Path:
    """Install into a folder, for `paths`, what those tests need and this project does not."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--target", str(folder)]
    subprocess.run([*command, *requirements], check=True)
    return folder


def run(
    source: Path, *arguments: str, plugins: Iterable[str], paths: Iterable[Path]
) -> "subprocess.CompletedProcess[str]":
    """Run pytest in `source`, with these plugins alone and with modules from `paths`."""
    options = [each for plugin in plugins for each in ("-p", plugin)]
    before = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *arguments],
        cwd=source,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*map(str, paths), *before]),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # a plugin that cannot be loaded is reported there
        text=True,
        check=False,
    )


def counts(done: "subprocess.CompletedProcess[str]", told: str) -> tuple[int, int]:
    """How many tests have passed, and the number that a plugin has printed after `told`. None may have failed."""
    assert done.returncode == 0, done.stdout
    passed, number = (re.search(pattern, done.stdout) for pattern in (r"(\d+) passed", rf"{told}: (\d+)"))
    assert passed, done.stdout
    assert number, done.stdout
    return int(passed[1]), int(number[1])
