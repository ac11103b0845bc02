"""The figures of `purgatory/SCALE.md` are those that were measured."""

import re
from typing import Any

from purgatory.bench import report
from purgatory.bench.case import OURS, Measured, find
from purgatory.bench.report import Group, groups, number
from tests.docs.test_figures import MEASURED, measured
from tests.support.paths import ROOT

PAGE = (ROOT / "purgatory" / "SCALE.md").read_text()
ONE = {
    "memory of an operation that waits": ("memory", "bytes", "B", {"pending": 1_000_000}),
    "CPU to register an operation and complete it": ("callback", "us", "µs", {"pending": 1_000}),
    "memory of a long poll that waits": ("http", "kib", "KiB", {"clients": 10_000}),
    "CPU to answer a long poll": ("http", "cpu_answer_us", "µs", {"clients": 10_000}),
    "CPU of an event to a client of an event stream": ("events", "cpu_event_us", "µs", {"clients": 10_000}),
}


def shown(name: str) -> list[str]:
    """The rows of a table of the page."""
    block = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", PAGE, re.DOTALL)
    assert block is not None
    return block[1].splitlines()[2:]


def relay() -> list[Group]:
    about, cases = report.load(MEASURED / "relay" / "results.json")
    assert [each.case for each in cases["relay"]] == find("relay").cases(False)
    assert (about["rounds"], about["missing"]) == (3, {})
    assert about["machine"]["asyncio-purgatory"].endswith("core in C")
    assert f"`{about['command']}`" in PAGE
    return groups(cases["relay"])


def median(cases: list[Measured], key: str, parameters: dict[str, Any], implementation: str = OURS) -> float:
    group = next(each for each in groups(cases) if parameters.items() <= each.parameters.items())
    return group.spread(implementation, key).median


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def rounded(value: float) -> str:
    return f"{float(f'{value:.2g}'):,.0f}"


def test_figures_of_one_process() -> None:
    cases = measured()
    assert shown("one") == [
        row(what, f"{number(median(cases[scenario], key, parameters))} {unit}")
        for what, (scenario, key, unit, parameters) in ONE.items()
    ]


def test_figures_of_a_relay_and_its_brokers() -> None:
    found = relay()
    names = list(found[0].members)
    two = [each for each in found if each.parameters["processes"] == 2]
    assert shown("relay") == [
        row(
            name.removeprefix(f"{OURS}, "),
            f"{group.parameters['messages a second']:,}",
            group.parameters["keys each"],
            f"{number(group.spread(name, 'heard_us').median)} µs",
            f"{number(group.spread(name, 'woken_us').median)} µs",
            rounded(group.spread(name, "a_core").median),
        )
        for name in names
        for group in two
    ]
    alone = [
        each for each in found if (each.parameters["messages a second"], each.parameters["keys each"]) == (1000, 1)
    ]
    assert shown("brokers") == [
        row(
            name.removeprefix(f"{OURS}, "),
            group.parameters["processes"],
            f"{number(group.spread(name, 'server_us').median)} µs",
            rounded(group.spread(name, "taken").median),
        )
        for name in names[:2]
        for group in alone
    ]


def test_constants_of_the_formula() -> None:
    hear = next(
        each.spread(f"{OURS}, Redis", "heard_us").median
        for each in relay()
        if each.parameters["messages a second"] == 5_000
    )
    wake = median(measured()["http"], "cpu_answer_us", {"clients": 10_000})
    assert f"hear = {hear:.0f}e-6" in PAGE
    assert f"wake = {wake:.0f}e-6" in PAGE
