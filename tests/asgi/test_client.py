"""Starlette's `TestClient` runs the application's loop in a thread of its own, and the test in another one."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from purgatory import DelayedOperationPurgatory, PurgatoryMisuse
from purgatory.asgi import closing_on_shutdown
from tests.support.operations import Flag


def test_a_test_is_the_wrong_thread_and_has_the_door() -> None:
    async def wait(request: Request) -> PlainTextResponse:
        return PlainTextResponse(await purgatory.try_complete_else_watch(operation, ["key"]))

    operation = Flag(300.0)
    purgatory = DelayedOperationPurgatory()
    app = Starlette(routes=[Route("/wait", wait)], lifespan=lambda _: closing_on_shutdown(purgatory))
    with TestClient(app) as client, ThreadPoolExecutor(1) as thread:
        poll = thread.submit(client.get, "/wait")
        while not purgatory.num_delayed:
            threading.Event().wait(0.001)
        operation.ready = True
        with pytest.raises(PurgatoryMisuse, match=r"use check_and_complete_threadsafe\(\)"):
            purgatory.check_and_complete("key")
        purgatory.check_and_complete_threadsafe("key")
        assert poll.result().text == "result of flag"
    assert purgatory.closed
