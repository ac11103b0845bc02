"""A Durable Streams server: append-only streams over HTTP, with reads that wait and keep no task.

`durable_streams` is an ASGI application to mount in one of Starlette or FastAPI, and `purgatory serve` the same with a
command line. The protocol: https://github.com/durable-streams/durable-streams. Both come with the extra `server`.
"""

from typing import TYPE_CHECKING, Any

from purgatory._extras import missing

if TYPE_CHECKING:
    from purgatory.streams.mounted import durable_streams

__all__ = ["durable_streams"]


def __getattr__(name: str) -> Any:
    """Import the application when it is first used: the modules below are imported without the extra too."""
    if name == "durable_streams":
        try:
            from purgatory.streams.mounted import durable_streams
        except ModuleNotFoundError as error:
            raise missing(error, "server") from None

        return durable_streams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
