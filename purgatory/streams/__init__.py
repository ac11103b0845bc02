"""A Durable Streams server: append-only streams over HTTP, with reads that wait without a task.

Mount `durable_streams` in an application of Starlette or FastAPI, or run the same server with `purgatory serve`. Both
need the extra `server`. The protocol: https://github.com/durable-streams/durable-streams.
"""

from typing import TYPE_CHECKING, Any

from purgatory._extras import missing

if TYPE_CHECKING:
    from purgatory.streams.mounted import durable_streams

__all__ = ["durable_streams"]


def __getattr__(name: str) -> Any:
    """Import the application when it is first used, because the modules below are imported without the extra too."""
    if name == "durable_streams":
        try:
            from purgatory.streams.mounted import durable_streams
        except ModuleNotFoundError as error:
            raise missing(error, "server") from None

        return durable_streams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
