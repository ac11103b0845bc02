"""`purgatory.asgi` by itself: a receive written by hand, signals sent to this process."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import (
    Delay,
    DelayedFutures,
    DelayedOperation,
    DelayedOperationPurgatory,
    OperationCancelled,
    PurgatoryClosed,
    ThresholdPurgatory,
    VirtualClock,
)
from purgatory.asgi import (
    ClientDisconnected,
    DelayedInScope,
    DelayedResponse,
    closing_on_shutdown,
    unless_disconnected,
)
from tests.support.operations import turn

END = {"type": "http.request", "body": b"", "more_body": False}
PART = {"type": "http.request", "body": b"x", "more_body": True}
GONE = {"type": "http.disconnect"}


class Client:
    """A client as a server knows it: the messages that `receive` yields, and whether it is running."""

    def __init__(self, *messages: dict[str, Any] | Exception) -> None:
        self.messages: asyncio.Queue[dict[str, Any] | Exception] = asyncio.Queue()
        self.say(*messages)
        self.running = 0
        self.calls = 0

    def say(self, *messages: dict[str, Any] | Exception) -> None:
        for message in messages:
            self.messages.put_nowait(message)

    async def receive(self) -> dict[str, Any]:
        self.calls += 1
        self.running += 1
        assert self.running == 1
        try:
            message = await self.messages.get()
            if isinstance(message, Exception):
                raise message
            return message
        except asyncio.CancelledError:
            await turn()  # a receive with a cleanup needs an iteration
            raise
        finally:
            self.running -= 1


class Answer(DelayedOperation[str]):
    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> str:
        return "answer"


@pytest.fixture
def waiting() -> Iterator[DelayedOperationPurgatory]:
    purgatory = DelayedOperationPurgatory(clock=VirtualClock())
    yield purgatory
    assert purgatory.num_delayed == 0


def _hold(purgatory: DelayedOperationPurgatory) -> Answer:
    return purgatory.try_complete_else_watch(Answer(300.0), ["key"])


async def _until(condition: Callable[[], object]) -> None:
    while not condition():
        await turn()


async def _begin(client: Client, operation: DelayedOperation[str]) -> asyncio.Task[str]:
    """A task that awaits the operation, and has received all messages of the client so far."""
    task = asyncio.create_task(unless_disconnected(client.receive, operation))
    await _until(lambda: client.running and client.messages.empty())
    return task


def _unused(result: str) -> Any:
    raise AssertionError(result)


class TestResponseThatIsNeverRun:
    async def test_its_operation_is_cancelled_on_the_next_iteration(self) -> None:
        purgatory = DelayedOperationPurgatory()
        operation = _hold(purgatory)
        DelayedResponse(operation, _unused)
        assert not operation.done()
        await turn()
        assert operation.cancelled()

    @pytest.mark.parametrize("awaited", ["before", "after"])
    async def test_its_operation_is_left_to_others_that_await_it(self, awaited: str) -> None:
        operation = _hold(DelayedOperationPurgatory())
        others = [operation.as_future()] if awaited == "before" else []
        DelayedResponse(operation, _unused)
        others = others or [operation.as_future()]
        await turn()
        operation.force_complete()
        assert await others[0] == "answer"

    async def test_in_any_thread_and_on_any_clock(self) -> None:
        clock = VirtualClock()
        live = DelayedOperationPurgatory()
        operation = _hold(live)
        thread = threading.Thread(target=lambda: DelayedResponse(operation, _unused))
        thread.start()
        thread.join()
        await turn()
        assert operation.cancelled()
        waiting = DelayedOperationPurgatory(clock=clock)
        virtual = _hold(waiting)
        DelayedResponse(virtual, _unused)
        assert waiting.num_delayed == 1
        clock.advance(0.0)
        assert virtual.cancelled()

    def test_when_the_loop_is_closed_nothing_happens(self) -> None:
        async def hold() -> DelayedResponse[str]:
            return DelayedResponse(_hold(DelayedOperationPurgatory()), _unused)

        response = asyncio.run(hold())
        del response


class TestDelayedInScope:
    @staticmethod
    async def sent(status: int, headers: list[tuple[bytes, bytes]], delayed: Any) -> list[Any]:
        async def framework(scope: Any, receive: Any, send: Any) -> None:
            if delayed is not None:
                scope["delayed"] = delayed
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": b"the framework's"})

        async def send(message: Any) -> None:
            messages.append(message)

        messages: list[Any] = []
        await DelayedInScope(framework)({"type": "http"}, Client().receive, send)
        return messages

    @staticmethod
    def answered() -> Any:
        async def answer(scope: Any, receive: Any, send: Any) -> None:
            headers = [(b"content-type", b"text/plain"), (b"x-own", b"1"), (b"vary", b"Origin")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"delayed"})

        return answer

    async def test_headers_of_the_framework_join_those_of_the_delayed_response(self) -> None:
        headers = [
            *((b"Content-Type", b"text/html"), (b"Content-Length", b"15"), (b"X-Own", b"2"), (b"X-After", b"3")),
            *((b"Set-Cookie", b"a=1"), (b"Set-Cookie", b"b=2"), (b"Vary", b"Cookie")),
        ]
        start, body = await self.sent(200, headers, self.answered())
        assert start["headers"] == [
            *((b"content-type", b"text/plain"), (b"x-own", b"1"), (b"vary", b"Origin")),
            *((b"x-after", b"3"), (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2"), (b"vary", b"Cookie")),
        ]
        assert body["body"] == b"delayed"

    @pytest.mark.parametrize("status", [302, 304, 404])
    async def test_other_answers_of_the_framework_are_sent(self, status: int) -> None:
        start, body = await self.sent(status, [(b"location", b"/login")], self.answered())
        assert (start["status"], start["headers"]) == (status, [(b"location", b"/login")])
        assert body["body"] == b"the framework's"

    async def test_error_of_the_framework_is_sent_and_the_operation_is_cancelled(self) -> None:
        operation = _hold(DelayedOperationPurgatory())
        response: Any = DelayedResponse(operation, _unused)
        sending = self.sent(500, [], response)
        del response
        start, body = await sending
        assert (start["status"], body["body"]) == (500, b"the framework's")
        del sending
        await turn()
        await turn()
        assert operation.cancelled()

    async def test_without_a_delayed_response_nothing_changes(self) -> None:
        headers = [(b"Content-Length", b"15")]
        start, body = await self.sent(200, headers, None)
        assert (start["headers"], body["body"]) == (headers, b"the framework's")


class TestUnlessDisconnected:
    async def test_a_disconnect_cancels_the_operation_at_once(self, waiting: DelayedOperationPurgatory) -> None:
        client = Client(END)
        operation = _hold(waiting)
        answering = await _begin(client, operation)
        assert not operation.done()
        client.say(GONE)
        with pytest.raises(ClientDisconnected, match="the client has disconnected") as raised:
            await answering
        assert raised.value.__suppress_context__
        assert operation.cancelled()
        assert client.running == 0

    async def test_who_leaves_leaves_the_operation_to_the_other_tasks_that_await_it(
        self, waiting: DelayedOperationPurgatory
    ) -> None:
        clients = [Client(END) for _ in range(4)]
        operation = _hold(waiting)
        tasks = [await _begin(client, operation) for client in clients]
        clients[0].say(GONE)
        with pytest.raises(ClientDisconnected):
            await tasks[0]
        clients[1].say(ConnectionError("reset"))
        with pytest.raises(ConnectionError, match="reset"):
            await tasks[1]
        tasks[2].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[2]
        assert not operation.done()
        operation.force_complete()
        assert await tasks[3] == "answer"
        assert [client.running for client in clients] == [0, 0, 0, 0]

    async def test_a_disconnect_is_no_cancellation_of_the_task(self, waiting: DelayedOperationPurgatory) -> None:
        async def handle() -> str:
            with suppress(ClientDisconnected):
                await unless_disconnected(Client(GONE).receive, _hold(waiting))
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            await turn()
            async with asyncio.timeout(10):
                return await unless_disconnected(client.receive, answer)

        client = Client()
        answer = _hold(waiting)
        handling = asyncio.create_task(handle())
        await _until(lambda: client.running)
        answer.force_complete()
        assert await handling == "answer"

    async def test_a_task_that_is_cancelled_as_its_client_disconnects_is_cancelled(
        self, waiting: DelayedOperationPurgatory
    ) -> None:
        client = Client(END)
        answering = await _begin(client, _hold(waiting))
        client.say(GONE)
        answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering
        assert client.running == 0

    async def test_a_receive_that_is_cancelled_by_others_cancels_no_task(
        self, waiting: DelayedOperationPurgatory
    ) -> None:
        async def receive() -> dict[str, Any]:
            raise asyncio.CancelledError

        operation = _hold(waiting)
        with pytest.raises(OperationCancelled):
            await unless_disconnected(receive, operation)
        assert operation.cancelled()

    async def test_messages_other_than_a_disconnect_are_skipped(self, waiting: DelayedOperationPurgatory) -> None:
        client = Client(PART, PART, END, {"type": "http.unheard_of"}, GONE)
        with pytest.raises(ClientDisconnected):
            await unless_disconnected(client.receive, _hold(waiting))
        assert client.calls == 5

    async def test_an_operation_that_is_done_asks_for_nothing(self, waiting: DelayedOperationPurgatory) -> None:
        client = Client(GONE)
        done, cancelled = _hold(waiting), _hold(waiting)
        done.force_complete()
        cancelled.cancel()
        coroutine = unless_disconnected(client.receive, done)
        with pytest.raises(StopIteration, match="answer"):
            coroutine.send(None)
        with pytest.raises(OperationCancelled, match="Answer was cancelled"):
            await unless_disconnected(client.receive, cancelled)
        assert client.calls == 0

    async def test_a_receive_that_keeps_its_cancellation_to_itself_does_not_hold_up_the_answer(
        self, waiting: DelayedOperationPurgatory
    ) -> None:
        calls = 0

        async def receive() -> dict[str, Any]:
            nonlocal calls
            calls += 1
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return END  # as `wait_for` of CPython 3.11 does if both come in the same iteration

        answering = asyncio.create_task(unless_disconnected(receive, _hold(waiting)))
        await _until(lambda: calls)
        waiting.complete_all()
        async with asyncio.timeout(10):
            assert await answering == "answer"
        assert calls == 1

    async def test_a_receive_that_repeats_the_body_is_refused(self, waiting: DelayedOperationPurgatory) -> None:
        async def replay() -> dict[str, Any]:
            return END

        operation = _hold(waiting)
        with pytest.raises(RuntimeError, match="repeats the end of the body"):
            await unless_disconnected(replay, operation)
        assert operation.cancelled()


EVENTS = st.sampled_from(["nothing", "part", "end", "disconnect", "fault", "complete", "cancel", "interrupt"])


@given(st.lists(st.lists(EVENTS, max_size=3), max_size=8))
def test_wait_ends_once_and_leaves_nothing_in_any_order_of_events(turns: list[list[str]]) -> None:
    async def run() -> None:
        happened: list[str] = []
        faults: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
        purgatory = DelayedOperationPurgatory(clock=VirtualClock())
        operation = _hold(purgatory)
        client = Client()
        answering = await _begin(client, operation)
        for events in (*turns, ["disconnect"]):
            for event in events:
                if answering.done():
                    break
                happened.append(event)
                match event:
                    case "part":
                        client.say(PART)
                    case "end":
                        client.say(END)
                    case "disconnect":
                        client.say(GONE)
                    case "fault":
                        client.say(ConnectionError())
                    case "complete":
                        operation.force_complete()
                    case "cancel":
                        operation.cancel()
                    case "interrupt":
                        answering.cancel()
            await turn()
        await asyncio.wait([answering])
        if answering.cancelled():
            assert "interrupt" in happened
        elif (exception := answering.exception()) is None:
            assert answering.result() == "answer"
            assert "complete" in happened
        else:
            cause: dict[type[BaseException], str] = {
                ClientDisconnected: "disconnect",
                OperationCancelled: "cancel",
                ConnectionError: "fault",
            }
            assert cause.get(type(exception), "end") in happened
            assert type(exception) in cause or happened.count("end") > 1
        assert operation.done()
        assert purgatory.num_delayed == 0
        if happened.count("interrupt") <= 1:
            assert client.running == 0
            assert asyncio.all_tasks() == {asyncio.current_task()}
        # A reported exception has no client to answer.
        assert all(isinstance(fault["exception"], (ConnectionError, RuntimeError)) for fault in faults)

    asyncio.run(run())


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """The signals that reached the handler which was there before."""
    numbers: list[int] = []

    def handle(number: int, frame: object) -> None:
        numbers.append(number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    yield numbers
    assert {signal.signal(number, handler) for number, handler in before.items()} == {handle}


class Recorder:
    """An object that counts its closes, and raises `fault` in each."""

    def __init__(self, fault: BaseException | None = None) -> None:
        self.fault = fault
        self.closed = 0

    async def aclose(self) -> None:
        self.closed += 1
        if self.fault is not None:
            raise self.fault


class TestClosingOnShutdown:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    async def test_a_signal_closes_and_reaches_the_servers_own_handler(
        self, handled: list[int], number: signal.Signals
    ) -> None:
        purgatory, threshold = DelayedOperationPurgatory(), ThresholdPurgatory(7)
        unfinished: asyncio.Future[None] = asyncio.Future()
        async with closing_on_shutdown(purgatory, threshold):
            poll = purgatory.try_complete_else_watch(Delay(300.0), ["key"])
            futures = purgatory.try_complete_else_watch(DelayedFutures([unfinished], 300.0), ["key"])
            reach = threshold.reach(7, 300.0)
            os.kill(os.getpid(), number)
            await poll
            assert [len(each) for each in await futures] == [0, 1]
            assert await reach == 7
            assert {each.outcome for each in (poll, futures, reach)} == {"closed"}
            await _until(lambda: handled)
            with pytest.raises(PurgatoryClosed):
                purgatory.try_complete_else_watch(Delay(1.0), ["key"])
            os.kill(os.getpid(), signal.SIGINT)
            await _until(lambda: len(handled) == 2)
        assert handled == [number, signal.SIGINT]

    async def test_a_handler_of_the_loop_goes_on_working(self, handled: list[int]) -> None:
        loop = asyncio.get_running_loop()
        told = asyncio.Event()
        before = signal.getsignal(signal.SIGTERM)
        loop.add_signal_handler(signal.SIGTERM, told.set)
        recorder = Recorder()
        try:
            async with closing_on_shutdown(recorder):
                os.kill(os.getpid(), signal.SIGTERM)
                await told.wait()
                await _until(lambda: recorder.closed)
            told.clear()
            os.kill(os.getpid(), signal.SIGTERM)
            await told.wait()
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            signal.signal(signal.SIGTERM, before)
        assert recorder.closed == 1

    async def test_end_of_the_context_closes_without_a_signal(self, handled: list[int]) -> None:
        recorder = Recorder()
        async with closing_on_shutdown(recorder):
            assert recorder.closed == 0
        with pytest.raises(ZeroDivisionError):
            async with closing_on_shutdown(recorder):
                raise ZeroDivisionError
        assert recorder.closed == 2

    async def test_a_signal_with_the_default_action_or_ignored_is_left_alone(self, handled: list[int]) -> None:
        mine = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        async with closing_on_shutdown(Recorder()):
            found = [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)]
        signal.signal(signal.SIGTERM, mine)
        signal.signal(signal.SIGINT, mine)
        assert found == [signal.SIG_DFL, signal.SIG_IGN]

    async def test_a_handler_set_meanwhile_stays_and_may_call_the_one_before_it(self, handled: list[int]) -> None:
        recorder = Recorder()
        mine = signal.getsignal(signal.SIGTERM)
        async with closing_on_shutdown(recorder):
            wrapper = signal.getsignal(signal.SIGTERM)
            assert callable(wrapper)
            signal.signal(signal.SIGTERM, lambda *arguments: wrapper(*arguments))
            theirs = signal.getsignal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is theirs
        signal.signal(signal.SIGTERM, mine)
        wrapper(signal.SIGTERM, None)
        await turn()
        assert handled == [signal.SIGTERM]
        assert recorder.closed == 1

    async def test_contexts_may_be_nested(self, handled: list[int]) -> None:
        recorders = [Recorder(), Recorder()]
        async with closing_on_shutdown(recorders[0]), closing_on_shutdown(recorders[1]):
            os.kill(os.getpid(), signal.SIGTERM)
            await _until(lambda: all(recorder.closed for recorder in recorders))
        assert handled == [signal.SIGTERM]

    async def test_failed_close_does_not_prevent_further_closes(self, handled: list[int]) -> None:
        recorders = [Recorder(ArithmeticError()), Recorder(), Recorder(LookupError()), Recorder()]
        with pytest.raises(ExceptionGroup) as raised:
            async with closing_on_shutdown(*recorders):
                os.kill(os.getpid(), signal.SIGTERM)
                await _until(lambda: all(recorder.closed for recorder in recorders))
        assert [type(fault) for fault in raised.value.exceptions] == [ArithmeticError, LookupError]
        assert [recorder.closed for recorder in recorders] == [1] * 4

    @pytest.mark.parametrize("wrong", [None, [Recorder()], 1])
    async def test_an_object_that_cannot_be_closed_is_refused_before_anything_is_done(
        self, handled: list[int], wrong: Any
    ) -> None:
        handler = signal.getsignal(signal.SIGTERM)
        recorder = Recorder()
        with pytest.raises(TypeError, match=r"each argument must be an object with aclose\(\)"):
            async with closing_on_shutdown(recorder, wrong):
                raise AssertionError
        assert signal.getsignal(signal.SIGTERM) is handler
        assert recorder.closed == 0


def test_a_handler_that_is_called_when_the_loop_is_closed_calls_the_servers_own(handled: list[int]) -> None:
    async def serve() -> Any:
        async with closing_on_shutdown(Recorder()):
            return signal.getsignal(signal.SIGTERM)

    asyncio.run(serve())(signal.SIGTERM, None)
    assert handled == [signal.SIGTERM]


def test_end_of_the_context_closes_in_another_thread() -> None:
    recorder = Recorder()
    before = signal.getsignal(signal.SIGTERM)

    async def serve() -> None:
        async with closing_on_shutdown(recorder):
            assert signal.getsignal(signal.SIGTERM) is before

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    thread.join()
    assert recorder.closed == 1
