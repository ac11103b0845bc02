"""Step 2: a purgatory wakes only the requests that wait for this topic."""

from fastapi import FastAPI

from purgatory import DelayedOperationPurgatory

app = FastAPI()
topics: dict[str, list[str]] = {}
purgatory = DelayedOperationPurgatory("polls")


@app.get("/topics/{topic}")
async def poll(topic: str, after: int = 0) -> list[str]:
    return await purgatory.wait_for(lambda: topics.get(topic, [])[after:], topic)


@app.post("/topics/{topic}", status_code=204)
async def publish(topic: str, text: str) -> None:
    topics.setdefault(topic, []).append(text)
    purgatory.check_and_complete(topic)
