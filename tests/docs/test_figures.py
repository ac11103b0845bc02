"""The figures and parameters that the pages show are the real ones."""

import inspect
import json
import re
from statistics import median
from typing import Any

import purgatory
from purgatory.bench import report
from purgatory.bench.case import OURS, Measured, find
from purgatory.bench.report import Group, groups, number
from purgatory.bench.summary import HEADLINES, Line, lines, summary
from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text()
API = (ROOT / "purgatory" / "API.md").read_text()
RESULTS = (ROOT / "purgatory" / "bench" / "RESULTS.md").read_text()
SCALE = (ROOT / "purgatory" / "SCALE.md").read_text()
MEASURED = ROOT / "purgatory" / "bench" / "measured"
ONE_PROCESS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "memory of an operation that waits": ("memory", "bytes", "B", {"pending": 1_000_000}),
    "CPU to register an operation and complete it": ("callback", "us", "µs", {"pending": 1_000}),
    "memory of a long poll that waits": ("arrivals", "kib", "KiB", {"pace": "in batches"}),
    "CPU to answer a long poll": ("arrivals", "cpu_answer_us", "µs", {"pace": "in batches"}),
    "CPU of an event to a client of an event stream": ("events", "cpu_event_us", "µs", {"clients": 10_000}),
}


def test_parameters_in_the_page_are_those_of_the_constructor() -> None:
    shown = re.search(r"`DelayedOperationPurgatory\((name=.*?)\)`", API)
    assert shown is not None
    parameters = inspect.signature(purgatory.DelayedOperationPurgatory).parameters.values()
    signature = ", ".join(f"{parameter.name}={parameter.default!r}" for parameter in parameters).replace("'", '"')
    assert shown[1].replace("*, ", "") == signature
    assert [parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY] == ["name"]


def load(part: str, page: str) -> dict[str, list[Measured]]:
    """What was measured by the command that the page shows, by scenario."""
    about, cases = report.load(MEASURED / part / "results.json")
    assert about["machine"]["asyncio-purgatory"].endswith("core in C")
    assert (about["rounds"], about["missing"]) == (3, {})
    assert f"`{about['command']}`" in page
    return cases


def measured() -> dict[str, list[Measured]]:
    """What was measured, by scenario. What was measured later takes the place of what was measured before."""
    parts = ("readme", "callback", "http", "arrivals", "events")
    return {scenario: cases for part in parts for scenario, cases in load(part, RESULTS).items()}


def shown(page: str, name: str) -> list[str]:
    """The rows of a table of a page."""
    block = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", page, re.DOTALL)
    assert block is not None
    return block[1].splitlines()[2:]


def headlines() -> list[Line]:
    """The lines that the README shows."""
    rows = {("memory", "bytes"), ("callback", "us"), ("wakeup", "ms"), ("storm", "stall_ms"), ("arrivals", "kib")}
    first = {(scenario, key): what for what, scenario, key, _ in reversed(HEADLINES) if (scenario, key) in rows}
    return [line for line in lines(measured(), "asyncio") if line.what in first.values()]


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
            before, rebuilt = (number(median(each)) for each in zip(*pairs, strict=True))
            assert re.search(rf"\| {before} {unit}\b[^|]*\| {rebuilt} {unit} \|", page)
            if unit != "s":  # that of a shutdown is not in the README
                ratio = number(median(before / rebuilt for before, rebuilt in pairs))
                assert f" | {rebuilt} {unit} | {ratio} (as it is) |" in README


def test_figures_of_the_benchmark_are_those_that_were_measured() -> None:
    table = summary(measured(), "asyncio").partition("\n\n")[2]
    assert table in RESULTS
    uvicorn, bench = ((ROOT / "purgatory" / part / "README.md").read_text() for part in ("uvicorn", "bench"))
    assert set(shown(uvicorn, "arrivals")) | set(shown(uvicorn, "http")) <= set(table.splitlines())
    five = [line.what for line in headlines()]
    assert len(five) == 5
    assert shown(bench, "headline") == [row for row in table.splitlines() if row.split(" | ")[0][2:] in five]


def test_figures_of_event_streams_are_those_that_were_measured() -> None:
    cases, scenario = measured()["events"], find("events")
    assert [each.case for each in cases] == scenario.cases(False)
    page = (ROOT / "purgatory" / "asgi" / "README.md").read_text()
    assert shown(page, "events") == summary({"events": cases}, "uvloop").splitlines()[4:]
    ends = {each.case.implementation: [figures["stop_clean"] for figures in each.rounds] for each in cases}
    assert ends.pop(OURS) == [100] * 3
    assert [ends[name] for name in ("sse-starlette", "fastapi.sse", "MCP SDK")] == [[0] * 3] * 3
    assert {figures["wrong"] for each in cases for figures in each.rounds} == {0}


def relay() -> list[Group]:
    cases = load("relay", SCALE)["relay"]
    assert [each.case for each in cases] == find("relay").cases(False)
    return groups(cases)


def figure(scenario: str, key: str, parameters: dict[str, Any]) -> float:
    """The median of a figure of the library."""
    group = next(each for each in groups(measured()[scenario]) if parameters.items() <= each.parameters.items())
    return group.spread(OURS, key).median


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def rounded(value: float) -> str:
    return f"{float(f'{value:.2g}'):,.0f}"


def test_figures_of_one_process() -> None:
    assert shown(SCALE, "one") == [
        row(what, f"{number(figure(scenario, key, parameters))} {unit}")
        for what, (scenario, key, unit, parameters) in ONE_PROCESS.items()
    ]


def test_figures_of_a_relay_and_its_brokers() -> None:
    found = relay()
    names = list(found[0].members)
    assert shown(SCALE, "relay") == [
        row(
            name.removeprefix(f"{OURS}, "),
            f"{group.parameters['messages a second']:,}",
            group.parameters["keys each"],
            f"{number(group.spread(name, 'heard_us').median)} µs",
            f"{number(group.spread(name, 'woken_us').median)} µs",
            rounded(group.spread(name, "a_core").median),
        )
        for name in names
        for group in found
        if group.parameters["processes"] == 2
    ]
    assert shown(SCALE, "brokers") == [
        row(
            name.removeprefix(f"{OURS}, "),
            group.parameters["processes"],
            f"{number(group.spread(name, 'server_us').median)} µs",
            rounded(group.spread(name, "taken").median),
        )
        for name in names[:2]
        for group in found
        if (group.parameters["messages a second"], group.parameters["keys each"]) == (1000, 1)
    ]


def test_constants_of_the_formula() -> None:
    busy = next(each for each in relay() if each.parameters["messages a second"] == 5_000)
    assert f"hear = {busy.spread(f'{OURS}, Redis', 'heard_us').median:.0f}e-6" in SCALE
    assert f"wake = {figure('http', 'cpu_answer_us', {'clients': 10_000}):.0f}e-6" in SCALE
