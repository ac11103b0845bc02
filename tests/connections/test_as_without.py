"""For any bytes, ends, resets, full buffers and calls, in any order, a connection that rests is as one that doesn't."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.connections import QuietConnections
from tests.connections.pair import Pair, pattern

Step = tuple[str, Any]

SIZES = st.sampled_from([1, 10, 1000, 5000, 70_000, 200_000])
STEPS = st.one_of(
    st.tuples(st.sampled_from(["rest", "rest", "rest"]), st.sampled_from([0.0, 0.0, 0.002])),
    st.tuples(st.sampled_from(["turns", "turns"]), st.integers(1, 4)),
    st.tuples(st.just("cool"), st.none()),
    st.tuples(st.just("settle"), st.none()),
    st.tuples(st.just("send"), SIZES),
    st.tuples(st.just("take"), st.none()),
    st.tuples(st.just("write"), SIZES),
    st.tuples(st.just("writelines"), SIZES),
    st.tuples(st.sampled_from(["half_close", "write_eof", "pause", "resume", "warm"]), st.none()),
    st.tuples(st.just("limits"), st.sampled_from([(None, None), (0, 0), (100, 10), (1000, None), (None, 7), (1, 2)])),
)
ENDS = st.sampled_from(["reset", "peer closes", "close", "abort"])


class Both:
    """The same connection twice: on the event loop's transport, and on one that rests."""

    def __init__(self, plain: Pair, quiet: Pair) -> None:
        self.pairs = (plain, quiet)
        self.quiet = quiet
        self.warming: list[asyncio.Task[Any]] = []
        self.was_cold = False
        self.is_racing = False
        """Whether the connection closes for the peer's end of file, so that what is written then may come or not."""

    async def run(self, steps: list[Step], end: str) -> None:
        for kind, value in steps:
            await self.step(kind, value)
            self.was_cold |= self.quiet.quiet.is_cold()
        await self.end(end)
        for pair in self.pairs:
            assert len(pair.notes.lost) == 1
            assert pair.notes.transport.is_closing()
            pair.close(reset=True)
        await asyncio.gather(*self.warming, return_exceptions=True)

    async def step(self, kind: str, value: Any) -> None:
        if kind == "rest":
            self.quiet.quiet.rest(value)
        elif kind == "cool":
            self.quiet.quiet.rest()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        elif kind == "turns":
            for _ in range(value):
                await asyncio.sleep(0)
        elif kind == "settle":
            await self.until_the_same()
        elif kind == "warm":
            self.warming.append(asyncio.ensure_future(self.quiet.quiet.warm()))
        elif kind in ("send", "half_close", "take"):
            self.is_racing |= kind == "half_close" and not self.quiet.notes.keeps_open
            for pair in self.pairs:
                getattr(pair, kind)(*() if value is None else (value,))
        elif not any(pair.notes.lost for pair in self.pairs):  # asyncio's own fails then
            called = [self.called(pair.notes.transport, kind, value) for pair in self.pairs]
            if not any(pair.notes.ends for pair in self.pairs):  # then loops differ
                assert called[0] == called[1]

    @staticmethod
    def called(transport: Any, kind: str, value: Any) -> Any:
        """Call the transport. Return what can be compared."""
        try:
            if kind in ("write", "writelines"):
                data = pattern(value)
                getattr(transport, kind)(data if kind == "write" else [data[:7], bytearray(data[7:])])
            elif kind == "write_eof":
                transport.write_eof()
            elif kind in ("pause", "resume"):
                getattr(transport, f"{kind}_reading")()
            else:
                high, low = value
                transport.set_write_buffer_limits(high, low)
        except (RuntimeError, ValueError) as error:
            return type(error)
        return transport.is_reading(), transport.is_closing(), transport.get_write_buffer_limits()

    async def end(self, kind: str) -> None:
        """End the connection, when both sides have all that was sent."""
        for pair in self.pairs:
            pair.notes.transport.resume_reading()
        await self.until_the_same(takes=True)
        if kind in ("reset", "peer closes"):
            for pair in self.pairs:
                pair.close(reset=kind == "reset")
            await self.until_the_same()
        for pair in self.pairs:
            if not pair.notes.lost:  # asyncio's own can't be aborted then
                getattr(pair.notes.transport, "abort" if kind == "abort" else "close")()
        await self.until(lambda: all(pair.notes.lost for pair in self.pairs), takes=True)
        await self.until_the_same(takes=True)

    async def until_the_same(self, takes: bool = False) -> None:
        if not self.quiet.notes.transport.is_reading():
            return  # one of them may have received something just before that
        await self.until(lambda: self.are_the_same(takes), takes)

    def are_the_same(self, takes: bool) -> bool:
        plain, quiet = (self.seen(pair, takes) for pair in self.pairs)
        return plain == quiet and plain[0]

    async def until(self, is_so: Callable[[], bool], takes: bool) -> None:
        """Wait until it is so, and remains so for some turns."""
        since, turns = 0, 0
        while since < 4:
            await asyncio.sleep(0 if turns < 50 else 0.001)
            if takes:
                for pair in self.pairs:
                    pair.take()
            since = since + 1 if is_so() else 0
            turns += 1
            assert turns < 600, [self.seen(pair, takes) for pair in self.pairs]

    def seen(self, pair: Pair, takes: bool) -> tuple[Any, ...]:
        """What has to be the same when nothing is under way."""
        notes = pair.notes
        assert notes.received == pattern(len(notes.received))
        has_all = len(notes.received) == pair.sent  # not the same number, because a full buffer takes more or less
        has_ended = notes.ends > 0  # asyncio tells it again after pause_reading and resume_reading
        lost = [error is None for error in notes.lost]
        # A buffer that the peer does not read may be full or not, because the system's own buffers grow.
        read = (pair.ending, b"" if self.is_racing else bytes(pair.read), notes.is_full) if takes else ()
        if self.is_racing and not takes:
            lost = []  # it closes when the peer has taken what was written before
        return has_all or bool(notes.lost), has_ended, tuple(lost), *read


@pytest.mark.parametrize("loop_factory", [asyncio.SelectorEventLoop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("family", ["TCP", "Unix"])
def test_it_is_as_without(loop_factory: Callable[[], asyncio.AbstractEventLoop], family: str) -> None:
    cold = 0
    with asyncio.Runner(loop_factory=loop_factory) as runner, closing(socket.create_server(("127.0.0.1", 0))) as server:

        @settings(deadline=None)
        @given(st.lists(STEPS, min_size=4, max_size=20), ENDS, st.booleans(), st.booleans())
        def check(steps: list[Step], end: str, keeps_open: bool, buffered: bool) -> None:
            nonlocal cold
            both = runner.run(example(steps, end, keeps_open, buffered))
            cold += both.was_cold

        async def example(steps: list[Step], end: str, keeps_open: bool, buffered: bool) -> Both:
            connections = QuietConnections(rest_after=0.1)
            listener = server if family == "TCP" else None
            plain, quiet = [await Pair.open(listener, each, keeps_open, buffered) for each in (None, connections)]
            both = Both(plain, quiet)
            try:
                await both.run([("rest", 0.0), ("turns", 2), *steps], end)
                await connections.wait_closed()
                assert len(connections) == 0
            finally:
                for pair in both.pairs:
                    if not pair.notes.lost:
                        pair.notes.transport.abort()
                    pair.close(reset=True)
                await asyncio.sleep(0.01)
            return both

        check()
    assert cold > 10
