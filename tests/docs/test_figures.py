"""The requests shown get the answers shown, the parameters and figures are the real ones."""

import inspect
import json
import re
from statistics import median

import purgatory
from purgatory.bench import report
from purgatory.bench.case import OURS, Measured, find
from purgatory.bench.summary import HEADLINES, Line, lines, summary
from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text()
API = (ROOT / "purgatory" / "API.md").read_text()
PERFORMANCE = (ROOT / "purgatory" / "bench" / "README.md").read_text()
RESULTS = (ROOT / "purgatory" / "bench" / "RESULTS.md").read_text()
MEASURED = ROOT / "purgatory" / "bench" / "measured"
PARTS = ("readme", "http", "events")
"""What was measured later takes the place of what was measured before."""


def test_every_public_name_is_documented() -> None:
    for name in purgatory.__all__:
        documentation = inspect.getdoc(getattr(purgatory, name))
        assert documentation, name


def test_parameters_in_the_page_are_those_of_the_constructor() -> None:
    shown = re.search(r"`DelayedOperationPurgatory\((name=.*?)\)`", API)
    assert shown is not None
    parameters = inspect.signature(purgatory.DelayedOperationPurgatory).parameters.values()
    signature = ", ".join(f"{parameter.name}={parameter.default!r}" for parameter in parameters).replace("'", '"')
    assert shown[1].replace("*, ", "") == signature
    assert [parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY] == ["name"]


def measured() -> dict[str, list[Measured]]:
    """What was measured, by scenario."""
    cases: dict[str, list[Measured]] = {}
    for part in PARTS:
        about, found = report.load(MEASURED / part / "results.json")
        assert about["machine"]["asyncio-purgatory"].endswith("core in C")
        assert (about["rounds"], about["missing"]) == (3, {})
        assert f"`{about['command']}`" in RESULTS
        cases |= found
    return cases


def test_figures_in_the_readme_are_those_that_were_measured() -> None:
    table = summary(measured(), "asyncio")
    rows = re.findall(r"^\| .* \| ([\d.]+ \w+) \| ([\d.,]+) \((.*)\) \|$", README, re.MULTILINE)
    rows = [row for row in rows if row[2] != "as it is"]
    assert len(rows) == 5
    for figure, ratio, rival in rows:
        assert re.search(rf"\| {figure} \| .*\b{re.escape(rival)} \*\*{ratio}\*\* ", table), (figure, ratio, rival)


def test_figures_of_rebuilt_programs_are_those_that_were_measured() -> None:
    page = (ROOT / "tests" / "adopted" / "README.md").read_text()
    for measured in json.loads((ROOT / "tests" / "adopted" / "measured.json").read_text()).values():
        for unit in measured["rounds"][0]["rebuilt"]:
            pairs = [(each["as it is"][unit], each["rebuilt"][unit]) for each in measured["rounds"]]
            before, rebuilt = (report.number(median(each)) for each in zip(*pairs, strict=True))
            assert re.search(rf"\| {before} {unit}\b[^|]*\| {rebuilt} {unit} \|", page)
            if unit != "s":  # that of a shutdown is not in the README
                ratio = report.number(median(before / rebuilt for before, rebuilt in pairs))
                assert f" | {rebuilt} {unit} | {ratio} (as it is) |" in README


def test_figures_of_the_benchmark_are_those_that_were_measured() -> None:
    table = summary(measured(), "asyncio").partition("\n\n")[2]
    assert table in RESULTS
    assert set(shown("uvicorn", "http")) <= set(table.splitlines())
    five = [line.what for line in headlines()]
    assert len(five) == 5
    assert shown("bench", "headline") == [row for row in table.splitlines() if row.split(" | ")[0][2:] in five]


def test_figures_of_event_streams_are_those_that_were_measured() -> None:
    cases, scenario = measured()["events"], find("events")
    assert [each.case for each in cases] == scenario.cases(False)
    assert shown("asgi", "events") == summary({"events": cases}, "uvloop").splitlines()[4:]
    ends = {each.case.implementation: [figures["stop_clean"] for figures in each.rounds] for each in cases}
    assert ends.pop(OURS) == [100] * 3
    assert [ends[name] for name in ("sse-starlette", "fastapi.sse", "MCP SDK")] == [[0] * 3] * 3
    assert {figures["wrong"] for each in cases for figures in each.rounds} == {0}


def headlines() -> list[Line]:
    """The lines that the README shows."""
    rows = {("memory", "bytes"), ("callback", "us"), ("wakeup", "ms"), ("storm", "stall_ms"), ("http", "kib")}
    first = {(scenario, key): what for what, scenario, key, _ in reversed(HEADLINES) if (scenario, key) in rows}
    return [line for line in lines(measured(), "asyncio") if line.what in first.values()]


def shown(part: str, scenario: str) -> list[str]:
    """The rows of a scenario's figures on the page of a part."""
    page = (ROOT / "purgatory" / part / "README.md").read_text()
    block = re.search(rf"<!-- {scenario} -->\n(.*?)<!-- /{scenario} -->", page, re.DOTALL)
    assert block is not None
    return block[1].splitlines()[2:]
