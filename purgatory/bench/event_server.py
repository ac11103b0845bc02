"""The long-poll server of the examples without a purgatory: each fetch waits for an `asyncio.Event` with a timeout.

All fetches of a topic share an event, which is replaced when the topic grows. The rest is the same program with the
same command line. The scenario `http` compares the two.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from examples.long_poll_server.__main__ import main
from examples.long_poll_server.app import LongPollServer
from purgatory.asgi import closing_on_shutdown


class EventServer(LongPollServer):
    """The server with fetches that wait without a purgatory. Produces are unchanged."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._changed: dict[str, asyncio.Event] = {}
        self._waiting = 0
        self._closing = False

    def has_grown(self, topic: str) -> None:
        """Set the event of the topic. Called by the log."""
        changed = self._changed.pop(topic, None)
        if changed is not None:
            changed.set()

    async def wait(self, request: Request, topic: str, offset: int, min_messages: int, wait: float) -> int:
        """Return the end of the topic when it has enough messages, or at the deadline."""
        waiting = asyncio.current_task()
        assert waiting is not None
        watching = asyncio.create_task(self._cancel_when_gone(request, waiting))
        self._waiting += 1
        try:
            async with asyncio.timeout(wait):
                while self.log.end(topic) - offset < min_messages and not self._closing:
                    await self._changed.setdefault(topic, asyncio.Event()).wait()
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            if watching.done():
                raise ClientDisconnect from None
            raise
        finally:
            self._waiting -= 1
            watching.cancel()
        return self.log.end(topic)

    async def statistics(self, request: Request) -> Response:
        """The number of waiting fetches."""
        return JSONResponse({"fetch": {"num_delayed": self._waiting}})

    async def aclose(self) -> None:
        """Complete all fetches."""
        self._closing = True
        for topic in list(self._changed):
            self.has_grown(topic)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        async with closing_on_shutdown(self), super()._lifespan(app):
            yield

    async def _cancel_when_gone(self, request: Request, waiting: "asyncio.Task[object]") -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        waiting.cancel()


if __name__ == "__main__":
    main(server=EventServer)
