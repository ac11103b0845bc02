"""Extensions of Griffe, which reads the docstrings for the API reference."""

import ast
import re
from contextlib import suppress
from typing import Any, Final

import griffe

NAME: Final = re.compile(r"(?<!`)`([A-Za-z][\w.]*)`(?!`)")


class Reference(griffe.Extension):
    """Read the base classes in Python, which have types and docstrings, and not those in C that replace them."""

    def on_module_node(self, *, node: Any, **kwargs: Any) -> None:
        """Leave out what type checkers leave out."""
        if isinstance(node, ast.Module):
            node.body = [each for each in node.body if not ast.unparse(each).startswith("if not TYPE_CHECKING:")]


class Links(griffe.Extension):
    """Link the names in docstrings that the reference has."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Do so in all docstrings of a package."""
        objects: list[Any] = [pkg]
        for each in objects:
            if each.docstring:
                each.docstring.value = NAME.sub(lambda match: link(each, match[1]), each.docstring.value)  # noqa: B023
            objects += [member for member in each.members.values() if not member.is_alias]


def link(where: Any, name: str) -> str:
    """Return a link to what `name` means in the docstring of `where`. Others' names stay code."""
    first, owner = name.partition(".")[0], where if where.is_class else where.parent
    if where.is_function and name in where.parameters:
        return f"`{name}`"
    if owner and owner.is_class and first in owner.all_members:
        return f'<autoref identifier="{owner.path}.{name}" optional>`{name}`</autoref>'
    with suppress(griffe.NameResolutionError):
        return f'<autoref identifier="{where.resolve(name)}" optional>`{name}`</autoref>'
    if first in where.package.members:  # a public name, so that a misspelt method is an error
        return f'<autoref identifier="{where.package.path}.{name}">`{name}`</autoref>'
    return f"`{name}`"
