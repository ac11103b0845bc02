"""Import a part while only the requirements of some extras are found: `python -m tests.package.alone PART EXTRA...`."""

import pkgutil
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import packages_distributions, requires
from types import ModuleType
from typing import Any, Final

from packaging.requirements import Requirement

OTHERS: Final = {"purgatory._core.build"}
"""The build is in no wheel. The measurement needs the extra `bench` too."""


def canonical(distribution: str) -> str:
    return re.sub("[-_.]+", "-", distribution).lower()


def need(distribution: str, extras: set[str], found: set[tuple[str, str]]) -> None:
    """Add what a distribution requires with these extras, and without, to `found`."""
    new = {(canonical(distribution), extra) for extra in ("", *extras)} - found
    found |= new
    for _, extra in new:
        for requirement in map(Requirement, requires(distribution) or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                need(requirement.name, requirement.extras, found)


class Finder:
    """Finds what the finders of `sys.meta_path` find, but no modules of distributions that are not needed."""

    def __init__(self, needed: set[str]) -> None:
        self._finders = list(sys.meta_path)
        self._others = {
            module
            for module, owners in packages_distributions().items()
            if not needed & set(map(canonical, owners)) and module not in sys.stdlib_module_names
        }
        for name in list(sys.modules):
            if name.partition(".")[0] in self._others:
                del sys.modules[name]

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name.partition(".")[0] in self._others:
            return None
        found = (finder.find_spec(name, path, target) for finder in self._finders)
        return next(filter(None, found), None)


def main(part: str, *extras: str) -> None:
    """Import the part's modules."""
    found: set[tuple[str, str]] = set()
    need("asyncio-purgatory", set(extras), found)
    sys.meta_path[:] = [Finder({distribution for distribution, _ in found})]
    module = import_module(part)
    for each in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{part}."):
        if each.name not in OTHERS and not each.name.endswith(".__main__"):
            import_module(each.name)


if __name__ == "__main__":
    main(*sys.argv[1:])
