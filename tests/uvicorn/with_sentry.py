"""What Sentry records of a request that waits, on uvicorn alone and with parking."""

import asyncio
import logging
import sys
from datetime import datetime
from typing import Any

import sentry_sdk
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from purgatory import DelayedOperationPurgatory
from purgatory.asgi import DelayedResponse
from purgatory.uvicorn import ParkingProtocol
from tests.uvicorn.serving import connected, serving

WAIT = 0.3
recorded: list[str] = []


class Transport(sentry_sdk.transport.Transport):
    """Keeps what would be sent."""

    def capture_envelope(self, envelope: Any) -> None:
        for item in envelope.items:
            event = item.payload.json
            if event and event.get("type") == "transaction":
                begin, end = (datetime.fromisoformat(event[name]) for name in ("start_timestamp", "timestamp"))
                when = "after the wait" if (end - begin).total_seconds() >= WAIT else "too early"
                recorded.append(f"{event['request']['method']}: {event['contexts']['trace'].get('status')} {when}")


sentry_sdk.init(dsn="http://a@127.0.0.1:1/1", traces_sample_rate=1.0, transport=Transport)


def make(purgatory: DelayedOperationPurgatory) -> FastAPI:
    app = FastAPI()

    @app.get("/", response_model=None)
    async def wait() -> DelayedResponse[bool]:
        operation = purgatory.wait_for(lambda: False, "key", timeout=WAIT)
        return DelayedResponse(operation, lambda _: PlainTextResponse("done"))

    return app


async def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    for http in (HttpToolsProtocol, ParkingProtocol):
        recorded.clear()
        async with serving(make(DelayedOperationPurgatory("app")), http) as server, connected(server) as client:
            assert (await client.request("GET", "/")).body == b"done"
            await server.until_no_task()
        sys.stdout.write(f"sentry got {recorded}\n")


if __name__ == "__main__":
    asyncio.run(main())
