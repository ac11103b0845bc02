"""Import a part while only the requirements of some extras are found: `python -m tests.package.alone PART EXTRA...`."""

import pkgutil
import sys
from importlib import import_module
from importlib.metadata import packages_distributions, requires
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OTHERS: Final = {"purgatory._core.build"}
"""The build is in no wheel. The measurement needs the extra `bench` too."""


def need(distribution: str, extras: set[str], found: set[tuple[str, str]]) -> None:
    """Add what a distribution requires with these extras, and without, to `found`."""
    new = {(canonicalize_name(distribution), extra) for extra in ("", *extras)} - found
    found |= new
    for _, extra in new:
        for requirement in map(Requirement, requires(distribution) or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                need(requirement.name, requirement.extras, found)


def hide_all_but(distributions: set[str]) -> None:
    """Let no module of any other distribution be imported."""
    hidden = {
        module
        for module, owners in packages_distributions().items()
        if not distributions & set(map(canonicalize_name, owners)) and module not in sys.stdlib_module_names
    }
    for name in list(sys.modules):
        if name.partition(".")[0] in hidden:
            del sys.modules[name]
    modules: dict[str, Any] = sys.modules
    modules.update(dict.fromkeys(hidden))


def main(part: str, *extras: str) -> None:
    """Import the part's modules."""
    found: set[tuple[str, str]] = set()
    need("asyncio-purgatory", set(extras), found)
    hide_all_but({distribution for distribution, _ in found})
    module = import_module(part)
    for each in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{part}."):
        if each.name not in OTHERS and not each.name.endswith(".__main__"):
            import_module(each.name)


if __name__ == "__main__":
    main(*sys.argv[1:])
