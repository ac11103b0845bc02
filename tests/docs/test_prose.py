"""The pages are easy to read: no phrase that has a plainer one, and no line or paragraph that is too long.

A check that a good writer would fight isn't here: nothing is said about the length of a single sentence.
"""

import re
from pathlib import Path
from statistics import mean

import pytest

from tests.docs.test_readmes import PAGES, name
from tests.support.paths import ROOT

PHRASES = {
    r", for one[.,:)]": "for example",
    r"\bfor ever\b": "forever",
    r"\ball the same\b": "anyway",
    r"\bat the (most|least)\b": "at most, at least",
    r"\bby itself\b": "on its own",
    r"\bwithout a word\b": "silently",
    r"\banew\b": "again",
    r"\bcosts by\b": "the cost depends on",
    r"\btime-outs?\b": "timeout",
    r"\bas ever\b": "as always",
    r"\bhow many that\b": "how many",
    r"\b(is|are) to be\b": "must be",
}
"""Phrases, and what to write instead."""


def prose(page: Path) -> list[str]:
    """The paragraphs and bullets of a page, each in one line and without links and code."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(\||#|!\[|\[[\w-]+\]: |<!--).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^ *([-*]|\d+\.) ", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\](\([^)]*\)|\[[\w-]+\])", r"\1", text)
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def test_sources_have_no_such_phrase() -> None:
    pattern = re.compile("|".join(PHRASES), re.IGNORECASE)
    suffixes = {".py", ".c", ".h", ".js", ".html", ".jinja"}
    sources = [
        path for part in ("purgatory", "examples") for path in (ROOT / part).rglob("*") if path.suffix in suffixes
    ]
    assert [(name(path), match[0]) for path in sources for match in pattern.finditer(path.read_text())] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_page_is_easy_to_read(page: Path) -> None:
    found = prose(page)
    for paragraph in found:
        for phrase, instead in PHRASES.items():
            match = re.search(phrase, paragraph, re.IGNORECASE)
            assert match is None, f"{match[0]!r} in {paragraph!r}: write {instead!r}"
        assert len(paragraph.split()) <= 90, f"a long paragraph: {paragraph!r}"
    sentences = [each for paragraph in found for each in re.split(r"(?<=[.!?:]) ", paragraph)]
    assert not sentences or mean(len(each.split()) for each in sentences) <= 20
    lines = re.sub(r"^```.*?^```$|\]\([^)]*\)", "", page.read_text(), flags=re.DOTALL | re.MULTILINE).splitlines()
    assert not [line for line in lines if len(line) > 100 and not re.match(r"\||`|\[[\w-]+\]: |!?\[", line)]
