"""The error for a missing requirement, with the commands that install its extra."""

from typing import Final

_REPOSITORY: Final = "git+https://github.com/asyncio-purgatory/asyncio-purgatory"


def install(*extras: str) -> str:
    """Return the commands that install these extras, in a clone and elsewhere."""
    names = ",".join(extras)
    return f"pip install -e '.[{names}]' in a clone, or pip install 'asyncio-purgatory[{names}] @ {_REPOSITORY}'"


def missing(error: ModuleNotFoundError, *extras: str) -> ModuleNotFoundError:
    """Return the same error with these commands in its message."""
    return ModuleNotFoundError(f"{error}: {install(*extras)}", name=error.name)
