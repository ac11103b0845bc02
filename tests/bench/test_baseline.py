"""`purgatory bench --baseline`: two libraries measured in one run, by the same scenarios."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from purgatory.__main__ import main
from purgatory.bench import report, runner
from purgatory.bench.case import BEFORE, EVERY, OURS, Case, Figures, Measured, find
from tests.support.paths import ROOT


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    """Another checkout of the library. It has no bench."""
    directory = tmp_path / "checkout"
    shutil.copytree(ROOT / "purgatory", directory / "purgatory", ignore=shutil.ignore_patterns("bench", "__pycache__"))
    return directory


def bench(scenario: str, baseline: Path, output: Path) -> tuple[dict[str, Any], list[Measured]]:
    """What is written of a run, and the cases of its scenario."""
    command = ["bench", scenario, "--quick", "--rounds", "1", "--loop", "asyncio"]
    main([*command, "--baseline", str(baseline), "--output", str(output)])
    about, measured = report.load(output / "results.json")
    return about, measured[scenario]


def test_ours_and_the_other_library_are_measured_alternately_and_nothing_else(baseline: Path, tmp_path: Path) -> None:
    about, measured = bench("wakeup", baseline, tmp_path / "measured")
    assert about["baseline"] == str(baseline)
    ours = [OURS, OURS + BEFORE, f"{OURS}, soon", f"{OURS}, soon{BEFORE}"]
    assert [each.case.implementation for each in measured] == ours * 3
    assert all(len(each.rounds) == 1 for each in measured)
    group, *_ = report.groups(measured)
    assert [group.reference(name) for name in ours[1:]] == [ours[0], ours[0], ours[2]]


def test_a_case_that_the_other_library_cannot_run_is_left_out(
    baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (baseline / "purgatory" / "__init__.py").write_text("raise ImportError('of another time')")
    _, measured = bench("callback", baseline, tmp_path / "measured")
    said = " ".join(capsys.readouterr().err.split())
    assert "left out: callback: purgatory, before, asyncio, pending 1,000, times 20: ImportError" in said
    ours, before = measured
    assert len(ours.rounds) == 1
    assert before.rounds == []
    assert "ImportError: of another time" in str(before.failed)
    (group,) = report.groups(measured)
    assert list(group.members) == [OURS]


def test_a_directory_without_the_library_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench("callback", tmp_path, tmp_path / "measured")
    assert "must be a checkout of this library" in capsys.readouterr().err


def test_every_scenario_has_a_before_and_after() -> None:
    for name in EVERY:
        cases = list(runner.with_variants(filter(Case.is_ours, find(name).cases(True)), BEFORE))
        assert cases
        assert [case.implementation + BEFORE for case in cases[::2]] == [case.implementation for case in cases[1::2]]
        assert [case.parameters for case in cases[::2]] == [case.parameters for case in cases[1::2]]


class TestTheRunner:
    def test_runner_leaves_out_a_failed_case_from_then_on(self) -> None:
        order = []

        def measure(case: Case) -> Figures:
            order.append(case.implementation)
            if case.implementation.endswith(BEFORE):
                raise runner.CaseFailed("too old")
            return {"ns": 1.0}

        ours, before = runner.run([Case("memory", name, "asyncio") for name in (OURS, OURS + BEFORE)], 3, measure)
        assert order == [OURS, OURS + BEFORE, OURS, OURS]
        assert (len(ours.rounds), ours.failed) == (3, None)
        assert (before.rounds, before.failed) == ([], "too old")

    def test_runner_stops_where_ours_fails(self) -> None:
        def measure(case: Case) -> Figures:
            raise runner.CaseFailed("broken")

        with pytest.raises(runner.CaseFailed, match="broken"):
            runner.run([Case("memory", OURS, "asyncio")], 3, measure)


def test_a_ratio_is_to_the_same_implementation() -> None:
    names = (OURS, f"{OURS}, soon", f"{OURS}, soon{BEFORE}")
    measured = [
        Measured(Case("memory", name, "asyncio"), [{"ns": figure}])
        for name, figure in zip(names, (1, 2, 3), strict=True)
    ]
    (group,) = report.groups(measured)
    assert group.ratio(f"{OURS}, soon", "ns") == report.Spread.of([2])
    assert group.ratio(f"{OURS}, soon{BEFORE}", "ns") == report.Spread.of([1.5])
