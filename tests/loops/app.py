"""An ASGI application that waits for a time, and answers with the class of its event loop."""

import asyncio
from typing import Any


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer after as many seconds as the query says; no later than after a tenth."""
    if scope["type"] != "http":
        return
    try:
        async with asyncio.timeout(0.1):
            await asyncio.sleep(float(scope["query_string"]))
    except TimeoutError:
        await send({"type": "http.response.start", "status": 504, "headers": []})
    else:
        await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": type(asyncio.get_running_loop()).__name__.encode()})
