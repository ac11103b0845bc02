"""What there is only one of, and what is closed at the end of `async with`."""

from types import TracebackType
from typing import NoReturn

__all__ = ["Closing", "Unique"]


class Unique:
    """What can be neither copied nor pickled, because there must be no second one. Its `repr` never raises."""

    __slots__ = ()

    def __repr__(self) -> str:
        try:
            return f"<{type(self).__qualname__} {self._purgatory_describe()}>"
        except AttributeError:  # in a subclass whose constructor prints it before it calls this one's
            return f"<{type(self).__qualname__} without super().__init__()>"
        except Exception as exception:
            return f"<{type(self).__qualname__}, whose repr raised {type(exception).__qualname__}>"

    def _purgatory_describe(self) -> str:
        """Return what `repr` says behind the type's name."""
        raise NotImplementedError

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"cannot copy or pickle a {type(self).__qualname__}")


class Closing(Unique):
    """What is closed at the end of `async with`. Subclasses define `__aenter__`."""

    __slots__ = ()

    async def __aexit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close it, in slices. Harmless when repeated."""
        raise NotImplementedError
