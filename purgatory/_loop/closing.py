"""Base classes of objects that cannot be copied, and of those that `async with` closes."""

from types import TracebackType
from typing import NoReturn


class Unique:
    """An object that can be neither copied nor pickled, because there must be no second one. `repr` never raises."""

    __slots__ = ()

    def __repr__(self) -> str:
        try:
            return f"<{type(self).__qualname__} {self._purgatory_describe()}>"
        except AttributeError:  # in a subclass whose constructor prints it before it calls this one's
            return f"<{type(self).__qualname__} without super().__init__()>"
        except Exception as exception:
            return f"<{type(self).__qualname__}, whose repr raised {type(exception).__qualname__}>"

    def _purgatory_describe(self) -> str:
        """Return the text that `repr` shows behind the type's name."""
        raise NotImplementedError

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"cannot copy or pickle a {type(self).__qualname__}")


class Closing(Unique):
    """An object that the end of `async with` closes. Subclasses define `__aenter__`."""

    __slots__ = ()

    async def __aexit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close it, in slices. Does nothing if it was closed before."""
        raise NotImplementedError
