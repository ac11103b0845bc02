"""The commands where only Spark sees the files: on a Connect server's own disk, and on a standalone cluster."""

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from purgatory.pipeline import cube
from tests.pipeline.clusters import connect_server, standalone_cluster
from tests.pipeline.commands import pipeline

TRAFFIC = ("--preset", "high", "--rate", "500", "--seconds", "4", "--instances", "3", "--seed", "3")
TABLES = ("advice", "ladder", "operations", "instances", "keys", "load")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal, its cube and its report, as this machine makes them."""
    path = tmp_path_factory.mktemp("here")
    pipeline("generate", path / "journal", *TRAFFIC)
    pipeline("rollup", path / "journal", path / "cube")
    pipeline("report", path / "cube", path / "report", "--timeout-rate", "0.1")
    return path


def assert_same_report(one: Path, two: Path) -> None:
    for table in TABLES:
        first, second = (pq.read_table(path / "tables" / table).to_pylist() for path in (one, two))
        assert sorted(map(repr, first)) == sorted(map(repr, second))


def rows(path: Path) -> list[str]:
    return sorted(map(repr, cube.load(str(path), lambda day: True).to_pylist()))


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A Connect server whose directory is a file system in its own mount namespace, and that directory."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("a mount namespace needs root")
    path = tmp_path_factory.mktemp("hidden")
    (path / "server").mkdir()
    mounted = f"mount -t tmpfs none {shlex.quote(str(path / 'server'))} && cd {shlex.quote(str(path / 'server'))}"
    with connect_server(path / "server", ["unshare", "-m", "sh", "-c", f'{mounted} && exec "$@"', "sh"]) as address:
        yield address, path / "server"


@pytest.mark.timeout(900)
def test_the_journal_and_the_cube_of_a_stream_are_the_connect_servers(
    here: Path, hidden: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, server = hidden

    def on_server(*arguments: str | Path, code: int = 0, remote: tuple[str, ...] = ("--remote", address)) -> str:
        done = pipeline(*arguments, *remote, code=code, JAVA_HOME="/nonexistent", SPARK_REMOTE=address)
        return done.stderr + done.stdout

    on_server("generate", server / "journal", *TRAFFIC)
    assert f"{server}/journal exists" in on_server("generate", server / "journal", *TRAFFIC, code=1)
    on_server("report", server / "journal", tmp_path / "report", "--timeout-rate", "0.1")
    assert_same_report(tmp_path / "report", here / "report")
    # A relative path is the server's too. The cube of rollup is written here, and found here.
    on_server("rollup", "journal", tmp_path / "cube")
    assert rows(tmp_path / "cube") == rows(here / "cube")
    on_server("report", tmp_path / "cube", tmp_path / "of-cube", "--timeout-rate", "0.1", remote=())
    assert_same_report(tmp_path / "of-cube", here / "report")
    # With a scheme, it is the server's.
    on_server("rollup", server / "journal", f"file://{server}/cube")
    on_server("report", server / "cube", tmp_path / "of-servers-cube", "--timeout-rate", "0.1")
    assert_same_report(tmp_path / "of-servers-cube", here / "report")

    stream = ("stream", server / "journal", "--slot", "1", "--once", "--checkpoint", server / "checkpoint")
    on_server(*stream, server / "streamed")
    on_server("report", server / "streamed", tmp_path / "of-stream", "--timeout-rate", "0.1")
    for table in ("advice", "keys"):
        path = Path("tables", table)
        assert pq.read_table(tmp_path / "of-stream" / path) == pq.read_table(here / "report" / path)
    assert "is a cube that rollup has written" in on_server(*stream, server / "cube", code=1)
    for command in ("rollup", "report"):
        said = on_server(command, server / "none", tmp_path / "none", code=1)
        assert f"purgatory pipeline: {server}/none does not exist" in said
    assert list(server.iterdir()) == []  # nothing was written here, nor could be read


@pytest.mark.timeout(900)
def test_a_standalone_cluster_gives_the_same_answers(here: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with standalone_cluster(tmp_path / "cluster") as master:
        options = ["--master", master, "--conf", "spark.executor.memory=512m"]
        options += ["--conf", f"spark.hadoop.fs.viewfs.mounttable.cluster.link./data=file://{tmp_path}/data"]
        pipeline("rollup", here / "journal", tmp_path / "cube", *options, SPARK_LOCAL_IP="127.0.0.1")
        assert rows(tmp_path / "cube") == rows(here / "cube")
        pipeline("rollup", here / "journal", "viewfs://cluster/data/cube", *options, SPARK_LOCAL_IP="127.0.0.1")
        assert rows(tmp_path / "data" / "cube") == rows(here / "cube")
        journal = here / "journal"
        pipeline("report", journal, tmp_path / "report", "--timeout-rate", "0.1", *options, SPARK_LOCAL_IP="127.0.0.1")
        assert_same_report(tmp_path / "report", here / "report")
        for worker in ("worker-0", "worker-1"):
            assert list((tmp_path / "cluster" / worker).glob("app-*")), "both have had executors"
