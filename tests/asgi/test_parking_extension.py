"""The application's side of the extension `purgatory.parking`, with a server written by hand."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from purgatory import Delay, DelayedOperationPurgatory
from purgatory.asgi import DelayedResponse, Event, EventStream
from purgatory.asgi.interface import EXTENSION
from tests.support.operations import Flag, raising, turn


class ParkingServer:
    """A server that parks each request, or none, and collects its messages."""

    def __init__(self, parks: bool = True) -> None:
        self.parks = parks
        self.sent: list[Any] = []
        self.listener: Any = None
        self.fault: Exception | None = None
        self.closed = False
        self.received: asyncio.Queue[Any] = asyncio.Queue()
        self.own_send = self.send_later

    @property
    def scope(self) -> Any:
        offered = {"park": self.park, "send": self.own_send, "code": ParkingServer.call.__code__}
        return {"type": "http", "method": "GET", "extensions": {EXTENSION: offered}}

    def park(self, send: Any, listener: Any) -> Any:
        assert send == self.own_send
        self.listener = listener
        return self if self.parks else None

    def send(self, *messages: Any) -> None:
        if self.fault is not None:
            raise self.fault
        self.sent += messages

    def close(self) -> None:
        self.closed = True

    async def send_later(self, message: Any) -> None:
        self.sent.append(message)

    async def receive(self) -> Any:
        message = await self.received.get()
        if isinstance(message, Exception):
            raise message
        return message

    async def call(self, app: Any) -> None:
        await app(self.scope, self.receive, self.own_send)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


def text(result: object) -> PlainTextResponse:
    return PlainTextResponse("done")


@pytest.fixture
def live() -> DelayedOperationPurgatory:
    return DelayedOperationPurgatory("live")


def wait(live: DelayedOperationPurgatory) -> Delay:
    return live.try_complete_else_watch(Delay(60.0), ["key"])


async def parked(live: DelayedOperationPurgatory, render: Any = text) -> ParkingServer:
    """A server with a request that waits."""
    server = ParkingServer()
    await server.call(DelayedResponse(wait(live), render))
    return server


async def test_response_for_an_operation_that_is_done_is_sent_at_once(live: DelayedOperationPurgatory) -> None:
    server = ParkingServer()
    operation = wait(live)
    live.complete_all()
    await server.call(DelayedResponse(operation, text))
    assert (server.listener, server.body) == (None, b"done")


@pytest.mark.parametrize("stream", [False, True])
async def test_disconnect_between_completion_and_answer_leaves_the_result(
    live: DelayedOperationPurgatory, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Left(Flag):
        def on_undelivered(self, result: str) -> None:
            self.calls.append(f"undelivered {result}")

    server, flag = ParkingServer(), live.try_complete_else_watch(Left(60.0), ["key"])
    await server.call(EventStream(lambda seen: flag, raising()) if stream else DelayedResponse(flag, raising()))
    live.complete_all()
    server.listener.disconnected()
    await turn()
    assert (server.body, caplog.text) == (b"", "")
    assert flag.calls == ["flag completes", "undelivered result of flag"]


async def test_shutdown_between_completion_and_answer_changes_nothing(live: DelayedOperationPurgatory) -> None:
    server = await parked(live)
    live.complete_all()
    await turn()
    server.listener.shutdown()
    assert server.body == b"done"


async def test_server_that_can_send_nothing_is_reported_and_others_are_answered(
    live: DelayedOperationPurgatory,
) -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    broken, whole = await parked(live), await parked(live)
    broken.fault = RuntimeError("cannot send")
    live.complete_all()
    await turn()
    assert whole.body == b"done"
    assert [context["exception"] for context in reported] == [broken.fault]
    assert (broken.closed, whole.closed) == (True, False)


async def test_request_to_exit_leaves_the_other_answers(live: DelayedOperationPurgatory) -> None:
    def exits(result: object) -> Any:
        raise KeyboardInterrupt

    exiting, other = await parked(live, exits), await parked(live)
    live.complete_all()
    with pytest.raises(KeyboardInterrupt):
        exiting.listener.answers._answer()
    await turn()
    assert other.body == b"done"


async def test_exception_of_receive_is_raised(live: DelayedOperationPurgatory) -> None:
    server = ParkingServer(parks=False)
    server.received.put_nowait(ValueError("a bad server"))
    operation = wait(live)
    with pytest.raises(ValueError, match="a bad server"):
        await server.call(DelayedResponse(operation, text))
    assert operation.cancelled()


async def test_disconnect_ends_the_task(live: DelayedOperationPurgatory) -> None:
    apps: list[tuple[Any, bytes]] = [
        # For middlewares, which fail without one: `BaseHTTPMiddleware` has logged a traceback for each.
        (DelayedResponse(wait(live), text), b"Client Closed Request"),
        (EventStream(lambda seen: wait(live), lambda result: []), b""),
    ]
    for app, body in apps:
        server = ParkingServer(parks=False)
        server.received.put_nowait({"type": "http.disconnect"})
        await server.call(app)
        assert server.body == body


async def test_background_task_runs_after_the_response(live: DelayedOperationPurgatory) -> None:
    ran = []

    async def background() -> None:
        ran.append(server.body)

    server = ParkingServer()
    stream: EventStream[object] = EventStream(lambda seen: None, lambda result: [])
    stream.background = background
    await server.call(stream)
    assert ran == [b""]
    assert server.listener is None


async def test_events_without_an_id_keep_the_last_one(live: DelayedOperationPurgatory) -> None:
    followed: list[str | None] = []

    def follow(last_event_id: str | None) -> Delay | None:
        followed.append(last_event_id)
        return wait(live) if len(followed) < 4 else None

    for server in (ParkingServer(), ParkingServer(parks=False)):
        followed.clear()
        results = [[], [Event("b")], [Event("a", id="1")]]

        def render(result: object, results: list[list[Event]] = results) -> list[Event]:
            return results.pop()

        calling = asyncio.create_task(server.call(EventStream(follow, render, "0")))
        while len(followed) < 4:
            live.complete_all()
            await turn()
        await calling
        assert followed == ["0", "1", "1", "1"]
        assert server.body == b"id: 1\ndata:a\n\ndata:b\n\n:\n\n"


async def test_stream_is_sent_with_default_and_own_headers() -> None:
    for server in (ParkingServer(), ParkingServer(parks=False)):
        headers = [(b"cache-control", b"no-cache"), (b"x-more", b"1")]
        await server.call(EventStream(lambda seen: None, list, headers=headers))
        assert server.sent[0]["headers"] == [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"x-accel-buffering", b"no"),
            *headers,
        ]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((5, text), "operation must be a DelayedOperation, not 5"),
        ((Delay(1.0), 5), "render must be callable, not 5"),
        ((Delay(1.0), turn), "render must not be async"),
    ],
)
def test_wrong_arguments_are_refused(arguments: Any, match: str) -> None:
    with pytest.raises(TypeError, match=match):
        DelayedResponse(*arguments)


def test_operation_that_completes_after_its_loop_is_closed_raises_nothing() -> None:
    async def park() -> DelayedOperationPurgatory:
        live = DelayedOperationPurgatory("live")
        await parked(live)
        return live

    loop = asyncio.new_event_loop()
    live = loop.run_until_complete(park())
    loop.close()
    assert live.complete_all() == 1


def test_starlette_is_not_needed() -> None:
    program = (
        "import sys; sys.modules['starlette.responses'] = None\n"
        "from purgatory import Delay\n"
        "from purgatory.asgi import DelayedResponse\n"
        "print(DelayedResponse.__mro__[1].__name__, DelayedResponse(Delay(1.0), print).background)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "BaseResponse None\n"
