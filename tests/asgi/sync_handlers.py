"""An application of FastAPI whose handlers are not `async`, so that they run in threads."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.responses import JSONResponse

from purgatory import DelayedOperation, DelayedOperationPurgatory, ThresholdPurgatory
from purgatory.asgi import DelayedResponse, closing_on_shutdown

purgatory = DelayedOperationPurgatory()
index = ThresholdPurgatory(0)
messages: list[str] = []


class Read(DelayedOperation[list[str]]):
    """Waits for messages behind the first `offset`."""

    def __init__(self, offset: int) -> None:
        super().__init__(300.0)
        self.offset = offset

    def try_complete(self) -> bool:
        return len(messages) > self.offset and self.force_complete()

    def on_complete(self) -> list[str]:
        return messages[self.offset :]


@asynccontextmanager
async def _lifespan(app: object) -> AsyncIterator[None]:
    async with closing_on_shutdown(purgatory, index):
        yield


app = FastAPI(lifespan=_lifespan)


@app.get("/messages", response_model=None)
async def read(offset: int) -> DelayedResponse[list[str]]:
    return DelayedResponse(purgatory.try_complete_else_watch(Read(offset), ["messages"]), JSONResponse)


@app.get("/index", response_model=None)
async def reach(above: int) -> DelayedResponse[int]:
    return DelayedResponse(index.reach(above, 300.0), JSONResponse)


@app.get("/state")
async def state() -> dict[str, int]:
    return {"pid": 0, "num_delayed": purgatory.num_delayed + index.num_waiting}


@app.post("/messages")
def append(text: str) -> None:
    messages.append(text)
    purgatory.check_and_complete_threadsafe("messages")


@app.post("/index")
def advance(value: int) -> None:
    index.advance_threadsafe(value)


@app.post("/wrong/advance")
def advance_in_the_wrong_thread() -> None:
    index.advance(10)
