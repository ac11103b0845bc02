"""Step 3: each request has a deadline."""

from fastapi import FastAPI, Query

from purgatory import DelayedOperationPurgatory

app = FastAPI()
topics: dict[str, list[str]] = {}
purgatory = DelayedOperationPurgatory("polls")


@app.get("/topics/{topic}")
async def poll(
    topic: str,
    after: int = Query(0, ge=0),
    wait: float = Query(30.0, ge=0, le=60),
) -> list[str]:
    news = purgatory.wait_for(lambda: topics.get(topic, [])[after:], topic, timeout=wait)
    return await news


@app.post("/topics/{topic}", status_code=204)
async def publish(topic: str, text: str) -> None:
    topics.setdefault(topic, []).append(text)
    purgatory.check_and_complete(topic)
