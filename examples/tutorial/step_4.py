"""Step 4: a server with limits, which answers everybody before it stops."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse

from purgatory import DelayedOperationPurgatory, PurgatoryClosed, PurgatoryFull
from purgatory.asgi import DelayedResponse, closing_on_shutdown

topics: dict[str, list[str]] = {}


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.purgatory = DelayedOperationPurgatory("polls", max_pending=10_000)
    async with closing_on_shutdown(app.state.purgatory):
        yield


app = FastAPI(lifespan=lifespan)


@app.exception_handler(PurgatoryFull)
@app.exception_handler(PurgatoryClosed)
async def unavailable(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, status_code=503, headers={"Retry-After": "5"})


@app.get("/topics/{topic}")
async def poll(
    request: Request,
    topic: str,
    after: int = Query(0, ge=0),
    wait: float = Query(30.0, ge=0, le=60),
) -> DelayedResponse[list[str]]:
    purgatory: DelayedOperationPurgatory = request.app.state.purgatory
    news = purgatory.wait_for(lambda: topics.get(topic, [])[after:], topic, timeout=wait)
    return DelayedResponse(news, JSONResponse)


@app.post("/topics/{topic}", status_code=204)
async def publish(request: Request, topic: str, text: str) -> None:
    topics.setdefault(topic, []).append(text)
    request.app.state.purgatory.check_and_complete_soon(topic)
