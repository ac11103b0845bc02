"""The API reference has every public name, with its documentation."""

import inspect
import re

import pytest

import purgatory
from tests.support.paths import ROOT

PAGES = "".join(page.read_text() for page in (ROOT / ".docs" / "pages" / "api").iterdir())
MODULES = re.findall(r"`(purgatory\.[\w.]+)`", (ROOT / "CONTRIBUTING.md").read_text().partition("## Stability")[2])


@pytest.mark.parametrize("name", purgatory.__all__)
def test_reference_has_the_name(name: str) -> None:
    assert re.search(rf"^(::: purgatory\.| +- ){name}$", PAGES, re.MULTILINE)
    assert inspect.getdoc(getattr(purgatory, name))


@pytest.mark.parametrize("module", MODULES)
def test_reference_has_the_module(module: str) -> None:
    assert f"::: {module}\n" in PAGES
