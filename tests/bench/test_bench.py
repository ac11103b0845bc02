"""`purgatory bench`: its measurements are complete and sane. No test judges a speed."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from purgatory.__main__ import main
from purgatory.bench import report, runner
from purgatory.bench.case import (
    BEFORE,
    IN_PYTHON,
    LIBRARY,
    OURS,
    SERVER,
    Case,
    Figures,
    Measured,
    Metric,
    Scenario,
    find,
)
from purgatory.bench.web import servers
from tests.streams.node import installed
from tests.support.cores import extension
from tests.support.paths import ROOT
from tests.support.servers import program

COMMAND = [sys.executable, "-m", "purgatory", "bench"]


def results(directory: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((directory / "results.json").read_text())
    return content


def run(tmp_path_factory: pytest.TempPathFactory, scenarios: Iterable[str], *options: str) -> Path:
    """The output of a quick run."""
    output = tmp_path_factory.mktemp("bench")
    command = [*COMMAND, *options, "--quick", "--rounds", "1", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert results(output)["command"].startswith(f"purgatory bench {' '.join(options)}".strip())
    for name in scenarios:
        assert find(name).title in done.stdout
        assert f"### {find(name).title}" in (output / "results.md").read_text()
    return output


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the library."""
    return run(tmp_path_factory, LIBRARY)


@pytest.fixture(scope="module")
def quick_of_streams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the servers of streams."""
    program("node", "nodejs")
    installed()
    return run(tmp_path_factory, SERVER, "--streams")


def check(output: Path, scenarios: Iterable[str]) -> None:
    """Every case is measured in every round."""
    about, measured = report.load(output / "results.json")
    assert about["missing"] == {}
    assert list(measured) == list(scenarios)
    for name in scenarios:
        scenario = find(name)
        assert [each.case for each in measured[name]] == scenario.cases(True)
        for each in measured[name]:
            (figures,) = each.rounds
            assert {metric.key for metric in scenario.metrics} <= set(figures)
            assert all(math.isfinite(figure) for figure in figures.values())


def ratios(output: Path, scenario: str) -> list[list[report.Spread | None]]:
    """The ratios to ours of each other member of each group of cases."""
    metrics = [metric.key for metric in find(scenario).metrics if metric.compared]
    groups = report.groups(report.load(output / "results.json")[1][scenario])
    return [
        [group.ratio(other, key) for key in metrics] for group in groups for other in group.members if other != OURS
    ]


class TestAQuickRun:
    def test_every_case_of_the_library_is_measured_and_compared_with_ours(self, quick: Path) -> None:
        check(quick, LIBRARY)
        for name in LIBRARY:
            for found in ratios(quick, name):
                assert any(ratio and 0 <= ratio.least <= ratio.median <= ratio.most for ratio in found)
            cases = results(quick)["scenarios"][name]["cases"]
            assert all(figure >= 0 for case in cases for figures in case["rounds"] for figure in figures.values())
        assert (quick / "overview-asyncio.png").read_bytes().startswith(b"\x89PNG\r\n")

    def test_both_servers_of_streams_are_measured_and_compared_in_every_case(self, quick_of_streams: Path) -> None:
        check(quick_of_streams, SERVER)
        for name in SERVER:
            for found in ratios(quick_of_streams, name):
                assert any(found)  # not all, since a CPU that was not used in a short round can't be compared with
        assert (quick_of_streams / "overview-uvloop.png").read_bytes().startswith(b"\x89PNG\r\n")

    def test_results_name_the_machine_and_the_core(self, quick: Path) -> None:
        machine = results(quick)["machine"]
        assert {"python", "system", "processor", "cores", "memory", "uvloop"} <= set(machine)
        assert machine["asyncio-purgatory"].endswith("core in Python" if extension is None else "core in C")

    def test_ours_is_never_early_and_no_answer_is_wrong(self, quick: Path) -> None:
        measured = results(quick)["scenarios"]
        storms = [case for case in measured["storm"]["cases"] if case["implementation"] == OURS]
        assert [figures["early"] for case in storms for figures in case["rounds"]] == [0]
        for name in ("http", "events"):
            assert {figures["wrong"] for case in measured[name]["cases"] for figures in case["rounds"]} == {0}

    def test_shutdown_ends_our_streams_properly_after_the_last_event(self, quick: Path) -> None:
        for case in results(quick)["scenarios"]["events"]["cases"]:
            if case["implementation"] in (OURS, "not parked"):
                assert [(each["stop_clean"], each["stop_missed"]) for each in case["rounds"]] == [(100, 0)]

    @pytest.mark.skipif(extension is None, reason="needs the extension: python purgatory/_speedups/build.py")
    def test_both_cores_are_measured_if_asked_for(self, tmp_path: Path) -> None:
        command = [*COMMAND, "memory", "--quick", "--rounds", "1", "--cores", "--output", str(tmp_path)]
        environment = {**os.environ, "PURGATORY_PURE": "0"}
        subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True)
        cases = results(tmp_path)["scenarios"]["memory"]["cases"]
        memory = {case["implementation"]: case["rounds"][0]["bytes"] for case in cases}
        assert memory[OURS] < 0.8 * memory[OURS + IN_PYTHON]


class TestTheCommand:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["nonsense"], "there is no scenario 'nonsense': choose from memory, callback, "),
            (["--rounds", "0"], "--rounds"),
            (["--rounds", "many"], "--rounds"),
            (["--cores", "--baseline", str(ROOT)], "not allowed with argument"),
            (["--baseline", str(ROOT / "tests")], "must be a checkout of this library"),
        ],
    )
    def test_wrong_arguments_are_refused(
        self, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit, match="2"):
            main(["bench", *arguments])
        assert said in capsys.readouterr().err

    def test_help_has_a_line_for_each_scenario(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit, match="0"):
            main(["bench", "--help"])
        lines = capsys.readouterr().out.splitlines()
        for name in (*LIBRARY, *SERVER):
            assert len([line for line in lines if line.startswith(f"  {name} ")]) == 1

    def test_directory_that_cannot_be_written_is_refused_at_the_start(self, tmp_path: Path) -> None:
        (tmp_path / "taken").write_text("")
        with pytest.raises(SystemExit, match=r"cannot write to .*taken"):
            main(["bench", "--output", str(tmp_path / "taken")])

    def test_what_cannot_be_measured_here_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(servers, "find_spec", lambda name: None)
        main(["bench", "http", "events", "--quick", "--loop", "asyncio", "--output", str(tmp_path)])
        said = " ".join(capsys.readouterr().err.split())
        assert "http: Node, uvloop, clients 200, requests 2,000 was not measured: node is not installed" in said
        assert "was not measured: sse-starlette is not installed" in said
        assert "was not measured: fastapi 0.135 or newer is not installed" in said
        assert "http was not measured: it has no cases on asyncio" in said
        assert results(tmp_path)["missing"]["http"] == "it has no cases on asyncio"

    def test_an_interrupted_run_writes_what_it_has_measured(self, tmp_path: Path) -> None:
        command = [*COMMAND, "memory", "storm", "--loop", "asyncio", "--quick", "--output", str(tmp_path)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith(find("storm").title):
                    break
            process.send_signal(signal.SIGINT)
            _, said = process.communicate()
        assert process.returncode == 130
        assert "interrupted" in said
        assert list(results(tmp_path)["scenarios"]) == ["memory"]


@pytest.mark.parametrize(
    ("scenario", "parameter", "values"),
    [
        ("memory", "pending", {10**5, 10**6}),
        ("wakeup", "waiters", {100_000}),
        ("storm", "due", {10**6}),
        ("await", "tasks", {2_000, 100_000}),
        ("http", "clients", {1_000, 10_000}),
    ],
)
def test_a_full_run_has_the_sizes_that_matter(scenario: str, parameter: str, values: set[object]) -> None:
    assert {case.parameters[parameter] for case in find(scenario).cases(False)} == values


class TestTheBaseline:
    @pytest.fixture
    def baseline(self, tmp_path: Path) -> Path:
        """Another checkout of the library. It has no bench."""
        folder = tmp_path / "checkout"
        shutil.copytree(ROOT / "purgatory", folder / "purgatory", ignore=shutil.ignore_patterns("bench", "__pycache__"))
        return folder

    def bench(self, scenario: str, baseline: Path, output: Path) -> tuple[dict[str, Any], list[Measured]]:
        """What is written of a run, and the cases of its scenario."""
        command = ["bench", scenario, "--quick", "--rounds", "1", "--loop", "asyncio"]
        main([*command, "--baseline", str(baseline), "--output", str(output)])
        about, measured = report.load(output / "results.json")
        return about, measured[scenario]

    def test_ours_and_the_other_library_are_measured_alternately_and_nothing_else(
        self, baseline: Path, tmp_path: Path
    ) -> None:
        about, measured = self.bench("wakeup", baseline, tmp_path / "measured")
        assert about["baseline"] == str(baseline)
        ours = [OURS, OURS + BEFORE, f"{OURS}, soon", f"{OURS}, soon{BEFORE}"]
        assert [each.case.implementation for each in measured] == ours * 3
        assert all(len(each.rounds) == 1 for each in measured)

    def test_a_case_that_the_other_library_cannot_run_is_left_out(
        self, baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (baseline / "purgatory" / "__init__.py").write_text("raise ImportError('of another time')")
        _, measured = self.bench("callback", baseline, tmp_path / "measured")
        said = " ".join(capsys.readouterr().err.split())
        assert "left out: callback: purgatory, before, asyncio, pending 1,000, times 20: ImportError" in said
        ours, before = measured
        assert len(ours.rounds) == 1
        assert before.rounds == []
        assert "ImportError: of another time" in str(before.failed)
        (group,) = report.groups(measured)
        assert list(group.members) == [OURS]


class TestTheRunner:
    def test_all_cases_are_measured_round_by_round_but_one_of_another_library_that_has_failed(self) -> None:
        order = []

        def measure(case: Case) -> Figures:
            order.append(case.implementation)
            if len(order) == 5:
                raise runner.CaseFailed("too old")
            return {"ns": 1.0}

        names = [OURS, OURS + BEFORE, "theirs"]
        ours, before, theirs = runner.run([Case("memory", name, "asyncio") for name in names], 3, measure)
        assert order == [*names, *names, OURS, "theirs"]
        assert (len(ours.rounds), len(theirs.rounds), ours.failed) == (3, 3, None)
        assert (before.rounds, before.failed) == ([], "too old")

    def test_a_case_of_this_library_that_fails_says_why(self) -> None:
        cases = [Case("storm", "nonsense", "asyncio", {"due": 1})]
        with pytest.raises(runner.CaseFailed, match=r"(?s)storm: nonsense, asyncio, .* failed:.*KeyError"):
            runner.run(cases, 1, runner.measure_apart)


async def _nothing(case: Case) -> Figures:
    return {}


METRICS = (Metric("ns", "time", "ns", compared=True),)
SCENARIO = Scenario("memory", "Timers", [], [], [], _nothing, METRICS)


def measured(name: str, *figures: float, loop: str = "asyncio", **parameters: Any) -> Measured:
    case = Case("memory", name, "uvloop" if loop == "uvloop" else "asyncio", parameters)
    return Measured(case, [{"ns": figure} for figure in figures])


class TestTheReport:
    def test_rounds_are_paired(self) -> None:
        # The machine was three times slower in the second round: the ratio is the same.
        (group,) = report.groups([measured(OURS, 10, 30, 10), measured("theirs", 20, 60, 30)])
        assert group.ratio("theirs", "ns") == report.Spread(median=2, least=2, most=3)
        assert group.spread(OURS, "ns") == report.Spread(median=10, least=10, most=30)

    def test_only_figures_measured_in_the_same_way_are_compared(self) -> None:
        found = report.groups(
            [measured(OURS, 1, pending=1), measured(OURS, 2, pending=2), measured(OURS, 3, loop="uvloop", pending=1)]
        )
        assert [str(group) for group in found] == ["asyncio, pending 1", "asyncio, pending 2", "uvloop, pending 1"]

    def test_a_ratio_is_to_the_same_implementation(self) -> None:
        soon = f"{OURS}, soon"
        (group,) = report.groups([measured(OURS, 1), measured(soon, 2), measured(soon + BEFORE, 3)])
        assert group.ratio(soon, "ns") == report.Spread.of([2])
        assert group.ratio(soon + BEFORE, "ns") == report.Spread.of([1.5])

    def test_there_is_no_ratio_to_nothing(self) -> None:
        (group,) = report.groups([measured(OURS, 0), measured("theirs", 1)])
        assert group.ratio("theirs", "ns") is None

    def test_a_table_in_markdown(self) -> None:
        table = report.table(SCENARIO, [measured(OURS, 10, 10), measured("theirs", 20, 40)])
        assert table.splitlines()[2:] == [
            "| where | what | time (ns) | times ours |",
            "| --- | --- | --- | --- |",
            "| asyncio | purgatory | 10 |  |",
            "|  | theirs | 30 | 3 (2 to 4) |",
        ]

    def test_results_are_read_as_they_were_written(self, tmp_path: Path) -> None:
        path = tmp_path / "results.json"
        written = {"memory": [measured(OURS, 1.5, pending=3), measured("theirs", 2.5, pending=3)]}
        report.save(path, {"rounds": 1}, written, {"http": "no server"})
        about, read = report.load(path)
        assert about == {"rounds": 1, "missing": {"http": "no server"}}
        assert read == written
        assert list(tmp_path.iterdir()) == [path]
