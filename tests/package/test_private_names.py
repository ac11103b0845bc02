"""Imports point downwards, and what is built on the core uses public names: of `purgatory` and `purgatory.lowlevel`."""

import ast
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGE = ROOT / "purgatory"
CORE = ("_core", "_loop", "_timer", "_speedups")
PREFIXES = ("_purgatory_", "_timer_")
FAMILY = ("_delay.py", "_frames.py", "_futures.py", "_idle.py", "_threshold.py", "_versions.py", "_virtual.py")
PARTS = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists() and path.name not in CORE)

pytestmark = pytest.mark.skipif(not PACKAGE.is_dir(), reason="needs the source of the package")


def modules(*names: str) -> Iterator[tuple[Path, ast.Module]]:
    for name in names:
        path = PACKAGE / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield file, ast.parse(file.read_text())


def attributes(tree: ast.AST) -> Iterator[ast.Attribute]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            yield node


def is_own(node: ast.Attribute) -> bool:
    """Whether it is an attribute of the object whose method this is."""
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls") and not node.attr.startswith(PREFIXES)


def private_names() -> set[str]:
    return {node.attr for _, tree in modules(*CORE) for node in attributes(tree)}


@pytest.mark.parametrize("name", [*FAMILY, *PARTS])
def test_no_private_attribute_of_the_core_is_used(name: str) -> None:
    private = private_names()
    assert {"_owner", "_purgatory_close", "_timer_leave", "_place"} <= private
    for path, tree in modules(name):
        own = {node.attr for node in attributes(tree) if is_own(node)}
        own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        used = {node.attr for node in attributes(tree) if not is_own(node)} - own
        assert {attribute for attribute in used if attribute in private or attribute.startswith(PREFIXES)} == set(), (
            path
        )


@pytest.mark.parametrize("name", PARTS)
def test_no_part_imports_a_private_module_of_the_core(name: str) -> None:
    for path, tree in modules(name):
        imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        private = tuple(f"purgatory.{core}" for core in CORE)
        assert {each for each in imported if each.startswith(private)} == set(), path


def room(module: str) -> str:
    """The folder or module directly in the package that a module is in."""
    return ".".join(module.split(".")[:2])


def test_folders_import_only_those_below_them() -> None:
    below: dict[str, set[str]] = {}
    for path, tree in modules("."):
        own = room(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
        imported = {room(node.module or "") for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        below.setdefault(own, set()).update(each for each in imported - {own} if each.startswith("purgatory"))
    TopologicalSorter(below).prepare()


def runs(node: ast.AST) -> bool:
    return not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING")


def walk(node: ast.AST, visits: Callable[[ast.AST], bool]) -> Iterator[ast.AST]:
    """A node and those below it, without those that are not to be visited."""
    if visits(node):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from walk(child, visits)


@pytest.mark.parametrize("name", [*PARTS, *CORE])
def test_modules_of_a_folder_import_only_those_below_them(name: str) -> None:
    # In these, objects of two modules know each other, and one of the modules imports the other for its types alone.
    visits = runs if name in ("_core", "_timer", "asgi") else lambda _: True
    below: dict[str, set[str]] = {}
    for path, tree in modules(name):
        own = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        imported = {node.module or "" for node in walk(tree, visits) if isinstance(node, ast.ImportFrom)}
        below[own] = {each for each in imported if each.startswith(f"purgatory.{name}.")}
    TopologicalSorter(below).prepare()
