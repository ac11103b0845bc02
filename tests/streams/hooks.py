"""Webhooks that answer as a test likes."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from aiohttp import web

HOOK = {"type": "webhook", "pattern": "e/*", "webhook": {"url": "http://localhost:1/"}}


class Hook:
    """A webhook, which answers what it is told to."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls: list[Any] = []
        self.port = 0

    async def call(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(await request.json())
        answer = self.answers.pop(0) if self.answers else {"done": True}
        if answer == "hang":
            await asyncio.sleep(60)
        if isinstance(answer, int):
            return web.Response(status=answer, headers={"Location": "http://localhost:1/"})
        text = answer if isinstance(answer, str) else json.dumps(answer)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(text[:5].encode())
        await asyncio.sleep(0.1)  # in two segments
        await response.write(text[5:].encode())
        return response

    def config(self, address: str = "127.0.0.1") -> dict[str, Any]:
        return {**HOOK, "webhook": {"url": f"http://{address}:{self.port}/"}, "lease_ttl_ms": 1000}


@asynccontextmanager
async def listening(*hooks: Hook, host: str = "127.0.0.1") -> AsyncIterator[None]:
    """The webhooks listen, each on a port of its own."""
    async with AsyncExitStack() as stack:
        for hook in hooks:
            app = web.Application()
            app.router.add_post("/", hook.call)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            stack.push_async_callback(runner.cleanup)
            await runner.setup()
            await web.TCPSite(runner, host, 0).start()
            hook.port = runner.addresses[0][1]
        yield
