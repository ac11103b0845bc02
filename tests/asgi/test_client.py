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
        operation = Flag(300.0)
        operations.append(operation)
        return PlainTextResponse(await purgatory.try_complete_else_watch(operation, [request.path_params["key"]]))

    async def check(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(purgatory.check_and_complete(request.path_params["key"])))

    operations: list[Flag] = []
    purgatory = DelayedOperationPurgatory()
    app = Starlette(
        routes=[Route("/wait/{key}", wait), Route("/check/{key}", check)],
        lifespan=lambda _: closing_on_shutdown(purgatory),
    )
    with TestClient(app) as client, ThreadPoolExecutor(2) as threads:
        polls = [threads.submit(client.get, f"/wait/{key}") for key in "ab"]
        while purgatory.num_delayed < 2:
            threading.Event().wait(0.001)
        for operation in operations:
            operation.ready = True
        with pytest.raises(PurgatoryMisuse, match=r"use check_and_complete_threadsafe\(\)"):
            purgatory.check_and_complete("a")
        assert client.get("/check/a").text == "1", "in the loop's thread"
        purgatory.check_and_complete_threadsafe("b")
        done = [poll.result().text for poll in polls]
    assert (done, purgatory.closed) == (["result of flag"] * 2, True)
