"""`purgatory bench --streams`: its measurements are complete, and a wrong answer fails them. No test judges a speed."""

import asyncio
import json
import os
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from purgatory.__main__ import main
from purgatory.bench import report
from purgatory.bench.case import OURS, SERVER, Case, find
from purgatory.bench.client import WrongAnswer, dial, percentile
from purgatory.bench.machine import Running
from purgatory.bench.server import clients
from purgatory.bench.server.clients import ask, get
from purgatory.bench.server.servers import REFERENCE, installed, missing
from purgatory.bench.summary import summary
from tests.support.paths import ROOT
from tests.support.servers import program


class TestWhatIsMissing:
    def test_node_is_named_with_its_command(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PATH", str(tmp_path))
        main(["bench", "appends", "--streams", "--quick", "--rounds", "1", "--output", str(tmp_path / "measured")])
        said = " ".join(capsys.readouterr().err.split())
        assert f"appends: {REFERENCE}, uvloop, bytes 100" in said
        assert "was not measured: needs node: sudo apt-get install nodejs npm" in said
        _, measured = report.load(tmp_path / "measured" / "results.json")
        assert {each.case.implementation for each in measured["appends"]} == {OURS}

    def test_more_readers_than_open_files_are_not_measured(self) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most == resource.RLIM_INFINITY:
            pytest.skip("a process may have any number of open files")
        why = missing(Case("readers", OURS, "uvloop", {"readers": most}))
        assert why == f"a process may have {most:,} open files (ulimit -Hn), and needs {most + 500:,}"

    def test_reference_is_installed_by_npm(self, tmp_path: Path) -> None:
        program("npm", "npm")
        packages = installed(tmp_path / "packages")
        about = packages / "@durable-streams" / "server" / "package.json"
        assert json.loads(about.read_text())["version"] == "0.3.7"
        before = about.stat().st_mtime_ns
        assert installed(tmp_path / "packages") == packages
        assert about.stat().st_mtime_ns == before


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[Running]:
    """A server that answers a request with these bytes, and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1")
    async with server:
        yield Running(psutil.Process(os.getpid()), server.sockets[0].getsockname()[1])


@pytest.mark.asyncio(loop_factories=["asyncio"])
class TestAWrongAnswer:
    async def test_answer_with_another_status_fails(self) -> None:
        async with answering(b"HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\nsome") as server:
            with pytest.raises(WrongAnswer, match=r"500 b'some', and not \(200,\)"):
                await ask(await dial(server), get("s"), 200)

    async def test_missing_answer_fails(self) -> None:
        async with answering(b"") as server:
            connection = await dial(server)
            with pytest.raises(ConnectionResetError, match="the server has hung up"):
                await ask(connection, get("s"), 200)
            with pytest.raises(ConnectionResetError, match="the server has hung up"):
                await connection.send(get("s"))

    async def test_lost_or_doubled_append_fails(self) -> None:
        first, second = (clients._message(7, number, 20) for number in range(2))
        clients._look_at(first + second, {7: 2}, 20)
        for data in (first, second, first + first, first + second[:-1] + b"x"):
            with pytest.raises(WrongAnswer):
                clients._look_at(data, {7: 2}, 20)

    async def test_another_message_than_the_appended_one_fails(self) -> None:
        run = clients._Run()
        reached = run.expect(b"message", 1)
        with pytest.raises(WrongAnswer):
            run.got(b"massage")
        run.got(b"message")
        assert reached.done()
        with pytest.raises(WrongAnswer):
            run.got(b"message")


def test_percentiles_are_those_of_the_nearest_rank() -> None:
    times = [number / 1e3 for number in range(1, 101)]
    assert [percentile(times, share) for share in (0.5, 0.99, 1.0)] == [50, 99, 100]
    assert percentile([0.007], 0.99) == 7


def test_figures_of_the_readme_are_those_that_were_measured() -> None:
    about, cases = report.load(ROOT / "purgatory" / "bench" / "measured" / "streams" / "results.json")
    assert about["missing"] == {}
    for name in SERVER:
        assert [each.case for each in cases[name]] == find(name).cases(False)
        assert {len(each.rounds) for each in cases[name]} == {about["rounds"]}
    readme = (ROOT / "purgatory" / "streams" / "README.md").read_text()
    assert summary(cases, "uvloop").partition("\n\n")[2] in readme
    assert f"`{about['command']}`" in readme
