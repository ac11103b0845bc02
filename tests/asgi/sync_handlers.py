"""An application of FastAPI whose handlers are not `async`, so that they run in threads."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.responses import JSONResponse

from purgatory import Delay, DelayedOperation, DelayedOperationPurgatory, ThresholdPurgatory
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


@app.post("/wrong/watch")
def watch() -> None:
    purgatory.try_complete_else_watch(Delay(0.0), ["messages"])


def one() -> DelayedOperation[object]:
    (operation,) = purgatory.watching("messages")
    return operation


@app.post("/wrong/{call}")
def call_wrongly(call: str) -> None:
    {
        "check": lambda: purgatory.check_and_complete("messages"),
        "check_soon": lambda: purgatory.check_and_complete_soon("messages"),
        "advance": lambda: index.advance(10),
        "advance_soon": lambda: index.advance_soon(10),
        "force": lambda: one().force_complete(),
        "cancel": lambda: one().cancel(),
        "reschedule": lambda: one().reschedule(1.0),
        "cancel_for_key": lambda: purgatory.cancel_for_key("messages"),
        "complete_all": index.complete_all,
        "cancel_all": purgatory.cancel_all,
        "close": purgatory.close,
    }[call]()
