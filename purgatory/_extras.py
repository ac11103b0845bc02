"""How a missing requirement is reported: with the commands that install the extra which brings it."""

from typing import Final

__all__ = ["install", "missing"]

_REPOSITORY: Final = "git+https://github.com/asyncio-purgatory/asyncio-purgatory"


def install(*extras: str) -> str:
    """The commands that install these extras, in a clone and elsewhere."""
    names = ",".join(extras)
    return f"pip install -e '.[{names}]' in a clone, or pip install 'asyncio-purgatory[{names}] @ {_REPOSITORY}'"


def missing(error: ModuleNotFoundError, *extras: str) -> ModuleNotFoundError:
    """The same error, with these commands in its message."""
    return ModuleNotFoundError(f"{error}: {install(*extras)}", name=error.name)
