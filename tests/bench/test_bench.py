"""`purgatory bench`: its measurements are complete and sane. No test judges a speed."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from purgatory.__main__ import main
from purgatory.bench import report, runner
from purgatory.bench.case import IN_PYTHON, LOOPS, OURS, UNLIMITED, Case, Figures, Measured, Metric, Scenario
from purgatory.bench.every import SCENARIOS
from purgatory.bench.scenarios import enqueue
from purgatory.bench.web import client
from tests.support.cores import extension
from tests.support.paths import ROOT

COMMAND = [sys.executable, "-m", "purgatory", "bench"]


RUN = {name: SCENARIOS[name] for name in ("storm", "callback", "http", "events", "versions")}
"""The scenarios of the run that all tests look at. Of the others, each measures one group of its cases."""


PURE = {**os.environ, "PURGATORY_PURE": "1"}
"""The environment of runs on the core in Python. Those on the core in C would measure both."""


def bench(output: Path, *arguments: str) -> Path:
    """Run the command. Returns the directory of its output."""
    command = [*COMMAND, "--quick", "--rounds", "1", "--output", str(output), *arguments]
    done = subprocess.run(command, env=PURE, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for name in arguments:
        assert name.startswith("-") or name in LOOPS or SCENARIOS[name].title in done.stdout
    return output


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a quick run."""
    return bench(tmp_path_factory.mktemp("bench"), *RUN)


@pytest.fixture(scope="module")
def enqueued(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a quick run of the redesign proposal's benchmark, on one loop."""
    return bench(tmp_path_factory.mktemp("enqueue"), "enqueue", "--loop", "asyncio")


def results(directory: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((directory / "results.json").read_text())
    return content


@pytest.mark.skipif(extension is None, reason="needs the extension: python purgatory/_speedups/build.py")
def test_both_cores_are_measured_where_the_one_in_c_is_used(tmp_path: Path) -> None:
    subprocess.run(
        [*COMMAND, "memory", "--quick", "--rounds", "1", "--loop", "asyncio", "--output", str(tmp_path)],
        env={**os.environ, "PURGATORY_PURE": "0"},
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert results(tmp_path)["machine"]["asyncio-purgatory"].endswith("core in C")
    memory = {
        case["implementation"]: case["rounds"][0]["bytes"] for case in results(tmp_path)["scenarios"]["memory"]["cases"]
    }
    assert memory[OURS] < 0.8 * memory[OURS + IN_PYTHON]


class TestAQuickRun:
    def test_quick_run_measures_every_case_in_every_round(self, quick: Path) -> None:
        measured = results(quick)["scenarios"]
        assert list(measured) == list(RUN)
        for name, scenario in RUN.items():
            cases = measured[name]["cases"]
            assert len(cases) == len(scenario.cases(True))
            for case in cases:
                assert len(case["rounds"]) == 1
                for figures in case["rounds"]:
                    assert set(figures) == {metric.key for metric in scenario.metrics}
                    assert all(math.isfinite(figure) and figure >= 0 for figure in figures.values())

    @pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in (*RUN, "enqueue")])
    def test_other_scenarios_measure_their_first_group(self, name: str) -> None:
        scenario = SCENARIOS[name]
        first, *others = scenario.cases(True)
        alike = [case for case in others if (case.loop, case.parameters) == (first.loop, first.parameters)]
        for case in (first, *alike):
            figures = runner.measure_apart(case)
            assert set(figures) == {metric.key for metric in scenario.metrics}
            assert all(math.isfinite(figure) and figure >= 0 for figure in figures.values())

    def test_results_name_the_command_and_the_machine(self, quick: Path) -> None:
        about = results(quick)
        assert about["command"].startswith("purgatory bench --quick")
        assert {"python", "system", "processor", "cores", "memory", "uvloop"} <= set(about["machine"])
        assert about["missing"] == {}

    def test_quick_run_compares_each_alternative_with_ours(self, quick: Path) -> None:
        for name, scenario in RUN.items():
            ratios = results(quick)["scenarios"][name]["ratios"]
            compared = [metric for metric in scenario.metrics if metric.compared]
            others = sum(case.implementation != OURS for case in scenario.cases(True))
            assert 0 < len(ratios) <= others * len(compared)
            for ratio in ratios:
                assert 0 <= ratio["least"] <= ratio["median"] <= ratio["most"]

    def test_quick_run_draws_every_plot(self, quick: Path) -> None:
        for name, scenario in RUN.items():
            for plot in scenario.plots:
                picture = (quick / f"{name}-{plot.name}.png").read_bytes()
                assert picture.startswith(b"\x89PNG\r\n")
                assert len(picture) > 5000

    def test_quick_run_draws_an_overview(self, quick: Path) -> None:
        assert (quick / "overview-asyncio.png").read_bytes().startswith(b"\x89PNG\r\n")

    def test_results_can_be_drawn_again(self, quick: Path, tmp_path: Path) -> None:
        (tmp_path / "results.json").write_bytes((quick / "results.json").read_bytes())
        main(["bench", "--redraw", "--output", str(tmp_path)])
        assert {path.name for path in tmp_path.iterdir()} == {path.name for path in quick.iterdir()}
        assert (tmp_path / "results.md").read_text() == (quick / "results.md").read_text()

    def test_quick_run_writes_its_tables(self, quick: Path) -> None:
        text = (quick / "results.md").read_text()
        for scenario in RUN.values():
            assert f"### {scenario.title}" in text
        assert f"| {OURS} |" in text

    def test_requests_expire_as_often_as_the_distribution_says(self, enqueued: Path) -> None:
        # P(time to complete > 200 ms), log-normal with median 20 ms and 75th percentile 60 ms, is 7.9 %.
        for case in results(enqueued)["scenarios"]["enqueue"]["cases"]:
            # More requests expire while the machine stands still. The minimum of the rounds leaves such a round out.
            least = min(figures["timeouts"] for figures in case["rounds"])
            assert least == 0 if case["implementation"] == "driver alone" else 5 <= least <= 12

    def test_requests_are_not_enqueued_faster_than_asked(self, enqueued: Path) -> None:
        limited = [
            case
            for case in results(enqueued)["scenarios"]["enqueue"]["cases"]
            if case["parameters"]["rate"] != UNLIMITED
        ]
        assert limited
        for case in limited:
            for figures in case["rounds"]:
                assert 0 < figures["rate"] < 1.1 * case["parameters"]["rate"]

    def test_ours_is_never_early_and_no_answer_is_wrong(self, quick: Path) -> None:
        measured = results(quick)["scenarios"]
        storms = [case for case in measured["storm"]["cases"] if case["implementation"] == OURS]
        assert [figures["early"] for case in storms for figures in case["rounds"]] == [0] * 2
        for name in ("http", "events", "versions"):
            assert {figures["wrong"] for case in measured[name]["cases"] for figures in case["rounds"]} == {0}

    def test_shutdown_ends_our_streams_properly_after_the_last_event(self, quick: Path) -> None:
        for case in results(quick)["scenarios"]["events"]["cases"]:
            if case["implementation"] in (OURS, "not parked"):
                assert [(each["stop_clean"], each["stop_missed"]) for each in case["rounds"]] == [(100, 0)]


class TestTheCommand:
    def test_unknown_scenario_is_refused_and_the_known_are_named(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit, match="2"):
            main(["bench", "nonsense"])
        assert "there is no scenario 'nonsense', but: enqueue, size, " in capsys.readouterr().err

    @pytest.mark.parametrize("rounds", ["0", "-1", "many"])
    def test_less_than_one_round_is_refused(self, rounds: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit, match="2"):
            main(["bench", "--rounds", rounds])
        assert "--rounds" in capsys.readouterr().err

    def test_directory_that_cannot_be_written_is_refused_at_the_start(self, tmp_path: Path) -> None:
        (tmp_path / "taken").write_text("")
        with pytest.raises(SystemExit, match=r"cannot write to .*taken"):
            main(["bench", "--output", str(tmp_path / "taken")])

    def test_scenarios_not_measured_on_a_loop_are_named(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        main(["bench", "memory", "--loop", "uvloop", "--quick", "--output", str(tmp_path)])
        assert "memory was not measured: it has no cases on uvloop" in capsys.readouterr().err
        assert results(tmp_path)["missing"] == {"memory": "it has no cases on uvloop"}

    def test_cases_whose_program_is_missing_are_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        main(["bench", "http", "--quick", "--loop", "asyncio", "--output", str(tmp_path)])
        node = "http: Node, uvloop, clients 200, requests 2,000"
        assert f"{node} was not measured: node is not installed" in " ".join(capsys.readouterr().err.split())
        assert results(tmp_path)["missing"] == {node: "node is not installed", "http": "it has no cases on asyncio"}

    def test_cases_whose_library_is_missing_are_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(client, "find_spec", lambda name: None)
        main(["bench", "events", "--loop", "asyncio", "--output", str(tmp_path)])
        said = " ".join(capsys.readouterr().err.split())
        assert "events: sse-starlette, uvloop, clients 1,000" in said
        assert "was not measured: sse-starlette is not installed" in said
        assert "was not measured: fastapi 0.135 or newer is not installed" in said

    @pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"scenarios": {"size": {}}}'])
    def test_unreadable_results_are_not_redrawn(self, tmp_path: Path, content: str | None) -> None:
        if content is not None:
            (tmp_path / "results.json").write_text(content)
        with pytest.raises(SystemExit, match=r"cannot read .*results.json: No such file|results.json holds no results"):
            main(["bench", "--redraw", "--output", str(tmp_path)])

    def test_interrupted_run_goes_on_where_it_stopped(self, tmp_path: Path) -> None:
        command = [*COMMAND, "size", "callback", "--loop", "asyncio", "--quick", "--output", str(tmp_path)]
        callback = len([case for case in SCENARIOS["callback"].cases(True) if case.loop == "asyncio"])
        with subprocess.Popen(command, env=PURE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith(SCENARIOS["callback"].title):
                    break
            process.send_signal(signal.SIGINT)
            _, said = process.communicate()
        assert process.returncode == 130
        assert "interrupted" in said
        before = results(tmp_path)["scenarios"]
        assert list(before) == ["size"]
        done = subprocess.run(command, env=PURE, capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        assert "size is measured already" in " ".join(done.stderr.split())
        after = results(tmp_path)["scenarios"]
        assert after["size"] == before["size"]
        assert len(after["callback"]["cases"]) == callback

    def test_figures_measured_otherwise_are_not_overwritten(self, tmp_path: Path) -> None:
        command = ["bench", "threads", "--quick", "--output", str(tmp_path)]
        main([*command, "--rounds", "1"])
        before = (tmp_path / "results.json").read_bytes()
        with pytest.raises(SystemExit, match="was measured with another rounds, 1: name another directory"):
            main(command)
        with pytest.raises(SystemExit, match="has other cases of threads: name another directory"):
            main([*command, "--rounds", "1", "--loop", "uvloop"])
        assert (tmp_path / "results.json").read_bytes() == before


class TestAFullRun:
    def test_full_run_is_the_benchmark_of_the_proposal(self) -> None:
        cases = SCENARIOS["enqueue"].cases(False)
        rates = list(dict.fromkeys(case.parameters["rate"] for case in cases))
        assert rates[0] == 10_000
        assert rates[-1] == UNLIMITED
        assert {case.parameters["load"] for case in cases} == {"low", "high"}
        assert {case.loop for case in cases} == {"asyncio", "uvloop"}
        assert {case.parameters["requests"] for case in cases if case.parameters["rate"] == UNLIMITED} == {1_000_000}
        assert enqueue.LOADS == {"low": (0.020, 0.060), "high": (0.200, 0.400)}
        assert (enqueue.KEYS, enqueue.KEYS_A_REQUEST) == (100, 3)

    @pytest.mark.parametrize(
        ("scenario", "parameter", "values"),
        [
            ("size", "pending", {10**3, 10**4, 10**5, 10**6}),
            ("memory", "pending", {10**5, 10**6}),
            ("wakeup", "waiters", {100_000}),
            ("storm", "due", {10**6}),
            ("await", "tasks", {2_000, 100_000}),
            ("http", "clients", {1_000, 10_000}),
            ("events", "clients", {1_000, 10_000}),
            ("idle", "idle", {0, 10**4, 10**6}),
            ("queue", "takers", {10**3, 10**4, 10**5}),
            ("threads", "calls", {200_000}),
            ("versions", "clients", {5_000}),
            ("versions", "keys", {20}),
        ],
    )
    def test_full_run_has_the_sizes_that_matter(self, scenario: str, parameter: str, values: set[int]) -> None:
        assert {case.parameters[parameter] for case in SCENARIOS[scenario].cases(False)} == values


class TestTheRunner:
    def test_runner_takes_all_cases_round_by_round(self) -> None:
        cases = [Case("size", name, "asyncio") for name in ("a", "b", "c")]
        order = []

        def measure(case: Case) -> Figures:
            order.append(case.implementation)
            return {"ns": 1.0}

        *_, last = runner.run(cases, 3, measure)
        assert order == ["a", "b", "c"] * 3
        assert [len(each.rounds) for each in last] == [3, 3, 3]

    def test_runner_says_why_a_case_failed(self) -> None:
        with pytest.raises(runner.CaseFailed, match=r"(?s)size: nonsense, asyncio, .* failed:.*KeyError"):
            runner.measure_apart(Case("size", "nonsense", "asyncio", {"pending": 1, "steps": 1}))

    def test_runner_measures_in_another_process(self) -> None:
        figures = runner.measure_apart(Case("size", OURS, "asyncio", {"pending": 10, "steps": 1000}))
        assert set(figures) == {"ns"}


SCENARIO = Scenario("size", "Size", lambda quick: [], lambda case: {}, (Metric("ns", "time", "ns", compared=True),))


def measured(name: str, *figures: float, loop: str = "asyncio", **parameters: Any) -> Measured:
    case = Case("size", name, "uvloop" if loop == "uvloop" else "asyncio", parameters)
    return Measured(case, [{"ns": figure} for figure in figures])


class TestTheReport:
    def test_report_pairs_the_rounds(self) -> None:
        # The machine was three times slower in the second round: the ratio is the same.
        (group,) = report.groups([measured(OURS, 10, 30, 10), measured("theirs", 20, 60, 30)])
        assert group.ratio("theirs", "ns") == report.Spread(median=2, least=2, most=3)
        assert group.spread(OURS, "ns") == report.Spread(median=10, least=10, most=30)

    def test_report_compares_only_figures_measured_in_the_same_way(self) -> None:
        found = report.groups(
            [measured(OURS, 1, pending=1), measured(OURS, 2, pending=2), measured(OURS, 3, loop="uvloop", pending=1)]
        )
        assert [str(group) for group in found] == ["asyncio, pending 1", "asyncio, pending 2", "uvloop, pending 1"]

    def test_report_has_no_ratio_to_nothing(self) -> None:
        (group,) = report.groups([measured(OURS, 0), measured("theirs", 1)])
        assert group.ratio("theirs", "ns") is None

    def test_report_leaves_out_rivals_that_have_not_been_measured_yet(self) -> None:
        assert report.groups([measured(OURS)]) == []

    def test_report_is_a_table_in_markdown(self) -> None:
        table = report.table(SCENARIO, [measured(OURS, 10, 10), measured("theirs", 20, 40)])
        assert report.markdown(table).splitlines()[2:] == [
            "| where | what | time (ns) | times ours |",
            "| --- | --- | --- | --- |",
            "| asyncio | purgatory | 10 |  |",
            "|  | theirs | 30 | 3 (2 to 4) |",
        ]

    def test_results_are_read_as_they_were_written(self, tmp_path: Path) -> None:
        path = tmp_path / "results.json"
        written = {"size": [measured(OURS, 1.5, pending=3), measured("theirs", 2.5, pending=3)]}
        report.save(path, {"rounds": 1}, written, {"http": "no server"})
        about, read = report.load(path)
        assert about == {"rounds": 1, "missing": {"http": "no server"}}
        assert read == written
        assert list(tmp_path.iterdir()) == [path]
