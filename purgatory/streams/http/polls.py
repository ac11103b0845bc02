"""The responses of long polls. A long one is sent a part at a time, and counts until its client has taken it."""

from collections.abc import Callable, Hashable
from typing import Final

from purgatory.asgi import DelayedResponse
from purgatory.asgi.parking import answers
from purgatory.asgi.response import Rendered, WaitingResponse
from purgatory.streams.admission import SHORT, Budget, Hold, Refusal
from purgatory.streams.engine.cache import Chunk
from purgatory.streams.engine.readers import Read
from purgatory.streams.http.replies import PART, Reply, error


class Poll(DelayedResponse["Chunk | Exception"]):
    """The response of a long poll."""

    def __init__(
        self,
        operation: Read,
        render: Callable[[Chunk | Exception], Reply],
        key: Callable[[Chunk | Exception], Hashable],
        budget: Budget,
    ) -> None:
        # Not by way of DelayedResponse's, which looks at the functions: these are shared by all, and need no look each.
        self.operation: Read = operation
        self.renderer = render
        self.key = key
        self.background = None
        self.budget = budget

    def waiting_response(self) -> "_Counted":
        return _Counted(self)


class _Counted(WaitingResponse["Chunk | Exception"]):
    """A parked long poll. What its client doesn't take is counted."""

    __slots__ = ("budget", "client", "hold", "pauses", "rest")

    def __init__(self, poll: Poll) -> None:
        super().__init__(answers(), poll.renderer, poll.key)
        self.budget: Budget = poll.budget
        self.client: str = poll.operation.address
        self.pauses: int = 0
        """How many have paused the response: the server, and a middleware that waits."""
        self.hold: Hold | None = None
        self.rest: memoryview = _NOTHING
        """What is still to be sent."""

    def send(self, rendered: Rendered) -> None:
        self._release()  # of a response that was wrong, in whose place this one is
        status, headers, body = rendered
        if len(body) <= SHORT:
            super().send(rendered)
            return
        hold = self.budget.hold(self.client)
        try:
            hold.resize(len(body))
        except Refusal as refused:
            reply = error(refused.status, str(refused), refused.headers)
            super().send((reply.status_code, reply.raw_headers, reply.body))
            return
        assert self.parked is not None
        self.hold, self.rest = hold, memoryview(body)
        self.parked.send({"type": "http.response.start", "status": status, "headers": list(headers)}, self._part())
        self._go_on()

    def _part(self) -> dict[str, object]:
        part, self.rest = self.rest[:PART], self.rest[PART:]
        return {"type": "http.response.body", "body": part, "more_body": True}

    def _go_on(self) -> None:
        while self.hold is not None and self.parked is not None and not self.pauses:
            if self.rest:
                self.parked.send(self._part())
            else:
                parked, self.parked = self.parked, None
                self._release()
                parked.send({"type": "http.response.body", "body": b""})

    def _release(self) -> None:
        if self.hold is not None:
            self.hold.count(0)
            self.hold = None

    def disconnected(self) -> None:
        self._release()
        super().disconnected()

    def pause_writing(self) -> None:
        self.pauses += 1

    def resume_writing(self) -> None:
        self.pauses -= 1
        self._go_on()


_NOTHING: Final = memoryview(b"")
