"""Build the site of the documentation in `build/site`: `python .docs/build.py`. Every warning is an error.

`zensical.toml` lists the pages. They stand beside the parts, or in `pages/` if only the site has them, and are copied
to `build/docs` with their paths, so that a link between two of them works both on GitHub and on the site. A link to any
other file becomes one to GitHub. A link to a page on GitHub or on the site becomes a relative one, which is checked.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent
BUILD: Final = ROOT / "build"
DOCS: Final = BUILD / "docs"

GITHUB: Final = "https://github.com/asyncio-purgatory/asyncio-purgatory"
BLOB: Final = f"{GITHUB}/blob/main/"
RAW: Final = "https://raw.githubusercontent.com/asyncio-purgatory/asyncio-purgatory/main/"
SITE: Final = "https://asyncio-purgatory.github.io/asyncio-purgatory/"

FENCED: Final = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
LINK: Final = re.compile(r"(?<=\]\()[^)\s]+(?=\))|(?<=\]: )\S+$", re.MULTILINE)


def main() -> None:
    """Copy the pages, write the one about commands, and build the site."""
    with (HERE / "zensical.toml").open("rb") as file:
        pages = set(leaves(tomllib.load(file)["project"]["nav"]))
    shutil.rmtree(DOCS, ignore_errors=True)
    shutil.copytree(HERE / "pages", DOCS)
    shutil.copy(HERE / "zensical.toml", BUILD)
    os.environ.update(COLUMNS="80", NO_COLOR="1")
    (DOCS / "commands.md").write_text(f"# Commands\n\n{command()}")
    for page in pages:
        if not (DOCS / page).exists():
            copy(page, pages)
    zensical = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    built = subprocess.run(zensical, cwd=BUILD, stderr=subprocess.PIPE, text=True, check=False)
    sys.stderr.write(built.stderr)
    if built.returncode or "griffe: " in built.stderr:  # it warns of docstrings, which --strict leaves out
        sys.exit("the site has warnings")


def leaves(nav: Any) -> list[str]:
    """Return the pages of a part of the navigation."""
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in leaves(part)]


def command(*words: str) -> str:
    """Return what `--help` of a command and of its subcommands prints, as sections of a page."""
    from purgatory.__main__ import main as purgatory

    try:
        with redirect_stdout(StringIO()) as printed:
            purgatory([*words, "--help"])
    except SystemExit as exit_request:
        if exit_request.code:  # an extra is missing
            raise
    text = printed.getvalue()
    subcommands = re.findall(r"^    (\w+) ", text.partition("\n  COMMAND\n")[2], re.MULTILINE)
    section = f"## {' '.join(('purgatory', *words))}\n\n```text\n{text}```\n\n"
    return section + "".join(command(*words, name) for name in subcommands)


def copy(page: str, pages: set[str]) -> None:
    """Copy a page and its pictures."""
    source, copied = ROOT / page, DOCS / page

    def link(match: re.Match[str]) -> str:
        url = match[0]
        path, mark, heading = url.removeprefix(BLOB).removeprefix(RAW).partition("#")
        if url.startswith(SITE):
            address = path.removeprefix(SITE).strip("/")
            path = f"{address}.md"
            if path not in pages:
                path = f"{address}/README.md".lstrip("/")
        if not path or ":" in path:  # a heading of this page, or another site
            return url
        folder = ROOT if url.startswith("https:") else source.parent
        file = Path(os.path.normpath(folder / path))
        name = file.relative_to(ROOT).as_posix()
        if name in pages:
            return os.path.relpath(file, source.parent) + mark + heading
        if not file.exists():
            sys.exit(f"{page} links to {url}, which doesn't exist")
        if file.suffix in (".png", ".svg"):
            (DOCS / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, DOCS / name)
            return os.path.relpath(file, source.parent)
        return f"{GITHUB}/{'tree' if file.is_dir() else 'blob'}/main/{name}{mark}{heading}"

    parts = FENCED.split(source.read_text())
    parts[::2] = [LINK.sub(link, part) for part in parts[::2]]
    copied.parent.mkdir(parents=True, exist_ok=True)
    copied.write_text("".join(parts))


if __name__ == "__main__":
    main()
