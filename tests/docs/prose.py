"""Check the project's English: `python -m tests.docs.prose` prints each offence with its place, and fails if any.

The subject of a sentence is a technical noun. So pronouns for persons are refused wherever text is read: in READMEs,
comments, docstrings and messages; as are sentences that begin with a relative clause, and tests named after one.
"""

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.paths import ROOT

PERSONS: Final = re.compile(r"\b(who(m|ever)?|(no|some|any|every)(body| ?one))\b", re.IGNORECASE)
RELATIVE: Final = re.compile(r"(^|[.:!?] )(What(ever)?|Whichever|That which|Those (that|which)) (?![^.]*\?)")
TEST: Final = re.compile(r"def (test_(one|what|those|who|whoever|nobody|that|they|it)_\w*)")
CODE: Final = re.compile(r"```.*?```|`[^`\n]*`|<!--.*?-->", re.DOTALL)

SUFFIXES: Final = ("py", "md", "html", "js", "mjs", "ts", "css", "jinja", "c", "h", "conf", "yml")
"""Of the files that have prose."""

EXEMPT: Final = (
    "LICENSE",
    "purgatory/bench/measured/",
    "purgatory/spark/measured/",
    "tests/docs/prose.py",
    "tests/docs/test_habits.py",
)


def offences(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file that break a rule, each with its text."""
    text = path.read_text()
    for number, line in _prose(text) if path.suffix == ".py" else _without_code(text):
        if match := PERSONS.search(line) or RELATIVE.search(line):
            yield number, f"{match[0].strip()!r} in {line.strip()!r}"
    if path.suffix == ".py":
        for number, line in enumerate(text.split("\n"), 1):
            if match := TEST.search(line):
                yield number, f"{match[1]} does not say what happens"


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a Python file's comments and strings."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            for number, line in enumerate(token.string.split("\n"), token.start[0]):
                yield number, CODE.sub("", line).strip().lstrip("#\"'")


def _without_code(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a page, without its code."""
    blank = CODE.sub(lambda match: re.sub(r"[^\n]", "", match[0]), text)
    return enumerate(blank.split("\n"), 1)


def pages() -> list[Path]:
    """The files of the project that have prose."""
    found = [path for pattern in ("*.md", ".github/**/*.md") for path in ROOT.glob(pattern)]
    for folder in ("purgatory", "examples", "tests"):
        found += [
            path
            for suffix in SUFFIXES
            for path in (ROOT / folder).rglob(f"*.{suffix}")
            if "node_modules" not in path.parts
        ]
    return [path for path in sorted(found) if not str(path.relative_to(ROOT)).startswith(EXEMPT)]


def main() -> None:
    """Check all pages."""
    found = [f"{path.relative_to(ROOT)}:{number}: {offence}" for path in pages() for number, offence in offences(path)]
    print("\n".join(found))  # noqa: T201
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
