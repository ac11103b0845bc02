"""Servers and clients of others on event loops whose timers are on wheels."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import httpx
import pytest
from aiohttp import web

from purgatory import loops
from tests.asgi.processes import serving

FACTORIES = {"asyncio": loops.new_event_loop, "uvloop": loops.new_uvloop}


@pytest.mark.parametrize(
    ("factory", "name"), [("new_event_loop", "WheelEventLoop"), ("new_uvloop", "WheelUvloop")], ids=FACTORIES
)
async def test_uvicorn_takes_the_factory_by_its_name(factory: str, name: str) -> None:
    arguments = ("tests.loops.app:app", "--port", "0", "--loop", f"purgatory.loops:{factory}")
    with serving("uvicorn", *arguments) as server:
        async with server.client() as client:
            answers = await asyncio.gather(*(client.get(f"/?{seconds}") for seconds in (0.0, 0.001, 3600)))
    assert [answer.text for answer in answers] == [name] * 3
    assert answers[2].status_code == 504


@asynccontextmanager
async def aiohttp_server() -> AsyncIterator[str]:
    """Its URL. Each request waits for as many seconds as it says."""

    async def wait(request: web.Request) -> web.Response:
        await asyncio.sleep(float(request.query["seconds"]))
        return web.Response(text="waited")

    app = web.Application()
    app.router.add_get("/", wait)
    runner = web.AppRunner(app, shutdown_timeout=0.1)  # not a minute for the request of an hour
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/?seconds="
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("name", FACTORIES)
def test_http_clients_get_answers_or_time_out(name: str) -> None:
    async def main() -> None:
        async with aiohttp_server() as url:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session:
                answers = await asyncio.gather(*(session.get(f"{url}{n * 0.001}") for n in range(50)))
                assert [await answer.text() for answer in answers] == ["waited"] * 50
                with pytest.raises(asyncio.TimeoutError):
                    await session.get(f"{url}3600", timeout=aiohttp.ClientTimeout(0.05))
            async with httpx.AsyncClient(timeout=60) as client:
                texts = [answer.text for answer in await asyncio.gather(*(client.get(f"{url}0.01") for _ in range(20)))]
                assert texts == ["waited"] * 20
                with pytest.raises(httpx.ReadTimeout):
                    await client.get(f"{url}3600", timeout=0.05)

    with asyncio.Runner(loop_factory=FACTORIES[name]) as runner:
        runner.run(main())
