"""The requests shown get the answers shown, the parameters and figures are the real ones."""

import inspect
import re

import purgatory
from purgatory.bench import report
from purgatory.bench.case import OURS
from purgatory.bench.registry import find
from purgatory.bench.summary import summary
from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text()
LIBRARY = (ROOT / "purgatory" / "README.md").read_text()
BENCH = (ROOT / "purgatory" / "bench" / "README.md").read_text()
MEASURED = ROOT / "purgatory" / "bench" / "measured"


def test_every_public_name_is_documented() -> None:
    for name in purgatory.__all__:
        documentation = inspect.getdoc(getattr(purgatory, name))
        assert documentation, name


def test_parameters_in_the_page_are_those_of_the_constructor() -> None:
    shown = re.search(r"`DelayedOperationPurgatory\((name=.*?)\)`", LIBRARY)
    assert shown is not None
    parameters = inspect.signature(purgatory.DelayedOperationPurgatory).parameters.values()
    signature = ", ".join(f"{parameter.name}={parameter.default!r}" for parameter in parameters).replace("'", '"')
    assert shown[1].replace("*, ", "") == signature
    assert [parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY] == ["name"]


def test_figures_in_the_readme_are_those_that_were_measured() -> None:
    about, cases = report.load(MEASURED / "readme" / "results.json")
    assert about["machine"]["asyncio-purgatory"].endswith("core in C")
    assert f"`{about['command']}`" in BENCH
    table = report.markdown(summary(cases, "asyncio"))
    rows = re.findall(r"^\| .* \| ([\d.]+ \w+) \| ([\d.,]+) \((.*)\) \|$", README, re.MULTILINE)
    programs = [row for row in rows if row[2] == "as it is"]
    rows = [row for row in rows if row not in programs]
    assert len(rows) == 5
    for figure, ratio, rival in rows:
        assert re.search(rf"\| {figure} \| .*\b{re.escape(rival)} \*\*{ratio}\*\* ", table), (figure, ratio, rival)
    page = (ROOT / "tests" / "adopted" / "README.md").read_text()
    assert len(programs) == 3
    for figure, ratio, _ in programs:
        value, unit = figure.split()
        before = re.search(rf"([\d.,]+) {unit}\b[^|]*\| {re.escape(figure)} \|", page)
        assert before, figure
        assert round(float(before[1].replace(",", "")) / float(value)) == int(ratio)


def test_figures_of_the_benchmark_are_those_that_were_measured() -> None:
    about, cases = report.load(MEASURED / "readme" / "results.json")
    assert (about["rounds"], about["missing"]) == (3, {})
    table = report.markdown(summary(cases, "asyncio")).partition("\n\n")[2]
    assert table in BENCH
    assert set(shown("uvicorn", "http")) <= set(table.splitlines())
    for picture in re.findall(r"measured/(\S+\.png)\)", BENCH):
        assert (MEASURED / picture).exists()


def test_figures_of_event_streams_are_those_that_were_measured() -> None:
    _, measured = report.load(MEASURED / "readme" / "results.json")
    cases, scenario = measured["events"], find("events")
    assert [each.case for each in cases] == scenario.cases(False)
    assert shown("asgi", "events") == report.markdown(summary({"events": cases}, "uvloop")).splitlines()[4:]
    ends = {each.case.implementation: [figures["stop_clean"] for figures in each.rounds] for each in cases}
    assert (ends[OURS], ends["sse-starlette"], ends["fastapi.sse"]) == ([100] * 3, [0] * 3, [0] * 3)
    assert {figures["wrong"] for each in cases for figures in each.rounds} == {0}


def shown(part: str, scenario: str) -> list[str]:
    """The rows of a scenario's figures on the page of a part."""
    page = (ROOT / "purgatory" / part / "README.md").read_text()
    block = re.search(rf"<!-- {scenario} -->\n(.*?)<!-- /{scenario} -->", page, re.DOTALL)
    assert block is not None
    return block[1].splitlines()[2:]
