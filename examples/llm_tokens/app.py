"""`POST /chats` lets a language model answer into a stream, which any number of readers can resume."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import httpx
from fastapi import BackgroundTasks, Body, FastAPI
from fastapi.responses import FileResponse

from purgatory.streams import durable_streams

streams = durable_streams(data=os.environ.get("LLM_TOKENS_DATA", "./data"))
app = FastAPI(lifespan=streams.lifespan)
app.mount("/streams", streams)

in_process = httpx.AsyncClient(transport=httpx.ASGITransport(streams), base_url="http://localhost/v1/stream/chats/")
"""A client of the streams that needs no connection."""


async def generate(prompt: str) -> AsyncIterator[str]:
    """Yield the tokens of an answer. This is a made-up model: call yours here."""
    for word in f"You have asked: {prompt} I am a made-up model, so I count to a hundred.".split(" "):
        yield f"{word} "
    for number in range(1, 101):
        await asyncio.sleep(0.05)
        yield f"{number} "


async def append(chat: str, message: dict[str, Any], **headers: str) -> None:
    """Append a message to the stream of a chat. It is on the disk when this returns."""
    (await in_process.post(chat, json=message, headers=headers)).raise_for_status()


async def answer(chat: str, prompt: str) -> None:
    """Append the tokens of an answer, then a last message that closes the stream."""
    try:
        async for token in generate(prompt):
            await append(chat, {"token": token})
    finally:
        await append(chat, {"done": True}, **{"Stream-Closed": "true"})


@app.post("/chats", status_code=201)
async def ask(prompt: Annotated[str, Body(embed=True)], tasks: BackgroundTasks) -> dict[str, str]:
    """Begin an answer, and name its stream. The answer goes on if the client leaves."""
    chat = uuid.uuid4().hex
    headers = {"Content-Type": "application/json", "Stream-TTL": "86400"}  # a day without a reader or a token
    (await in_process.put(chat, headers=headers)).raise_for_status()
    tasks.add_task(answer, chat, prompt)
    return {"stream": f"/streams/v1/stream/chats/{chat}"}


@app.get("/")
async def page() -> FileResponse:
    """A reader in the browser."""
    return FileResponse(Path(__file__).parent / "index.html")
