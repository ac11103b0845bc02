"""What can be neither copied nor pickled, and what is closed at the end of `async with`."""

from types import TracebackType
from typing import NoReturn

__all__ = ["Closing", "NoCopy"]


class NoCopy:
    """What can be neither copied nor pickled: there must be no second one."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"cannot copy or pickle a {type(self).__qualname__}")


class Closing(NoCopy):
    """What is closed at the end of `async with`. Subclasses define `__aenter__`."""

    __slots__ = ()

    async def __aexit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close it, in slices. Harmless when repeated."""
        raise NotImplementedError
