"""Step 1: a long poll with nothing but asyncio."""

import asyncio

from fastapi import FastAPI

app = FastAPI()
topics: dict[str, list[str]] = {}
changed = asyncio.Condition()


@app.get("/topics/{topic}")
async def poll(topic: str, after: int = 0) -> list[str]:
    async with changed:
        await changed.wait_for(lambda: len(topics.get(topic, [])) > after)
    return topics.get(topic, [])[after:]


@app.post("/topics/{topic}", status_code=204)
async def publish(topic: str, text: str) -> None:
    async with changed:
        topics.setdefault(topic, []).append(text)
        changed.notify_all()
