"""Operations, clocks and tasks for the tests."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar, TypeVarTuple

from purgatory import DelayedOperation, DelayedOperationPurgatory, Handle, TimerTask, VirtualClock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def turn() -> None:
    """Let the event loop run one iteration."""
    loop = asyncio.get_running_loop()
    next_iteration = loop.create_future()
    loop.call_soon(next_iteration.set_result, None)
    await next_iteration


async def wait(operation: DelayedOperation[T]) -> T:
    """A coroutine of the test's own that awaits an operation."""
    return await operation


def raising(error: BaseException | type[BaseException] = LookupError) -> Callable[..., Any]:
    """A function that raises `error`, whatever it is called with."""

    def call(*_: object) -> Any:
        raise error

    return call


class FaultLog(VirtualClock):
    """A virtual clock that keeps the contexts given to its exception handler and the times given to `call_at`.

    It may be some seconds `ahead` of its calls, as the clock of a loop that was blocked.
    """

    ahead = 0.0

    def __init__(self, start: float = 0.0) -> None:
        super().__init__(start)
        self.faults: list[dict[str, Any]] = []
        self.armed: list[float] = []

    def time(self) -> float:
        return super().time() + self.ahead

    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts) -> Handle:
        self.armed.append(when)
        return super().call_at(when, callback, *args)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.faults.append(context)

    @property
    def exceptions(self) -> list[BaseException]:
        return [context["exception"] for context in self.faults]


class Waiting(DelayedOperation[None]):
    """The smallest operation there is."""

    __slots__ = ()

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        pass


class CallingClock(FaultLog):
    """A virtual clock in one of whose methods a call of the test's own comes, as in a clock that is a user's."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__(start)
        self._left = -1
        self._call: Callable[[], object] = int

    def arm(self, nth: int, call: Callable[[], object]) -> None:
        """Make `call` inside the `nth` call of a method from now on, counted from 0."""
        self._left, self._call = nth, call

    def time(self) -> float:
        self._count()
        return super().time()

    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts) -> Handle:
        self._count()
        return super().call_at(when, callback, *args)

    def _count(self) -> None:
        self._left -= 1
        if self._left == -1:
            self._call()


class RefusingClock(FaultLog):
    """A virtual clock that may not be asked to call back while it `refuses`, as a loop that is closed."""

    refuses = False

    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts) -> Handle:
        if self.refuses:
            raise RuntimeError("refused")
        return super().call_at(when, callback, *args)


class OddClock(CallingClock, RefusingClock):
    """A virtual clock that may do both."""


class Flag(DelayedOperation[str]):
    """Completes when `ready` is set; counts its tries; notes its calls in `calls`, a list that several may share."""

    tries = 0

    def __init__(
        self,
        timeout: float | None = None,
        name: str = "flag",
        *,
        ready: bool = False,
        calls: list[str] | None = None,
        then: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(timeout)
        self.name = name
        self.ready = ready
        self.calls = [] if calls is None else calls
        self.then = then

    def try_complete(self) -> bool:
        self.tries += 1
        return self.ready and self.force_complete()

    def on_complete(self) -> str:
        self.calls.append(f"{self.name} completes")
        self.then()
        return f"result of {self.name}"

    def on_expiration(self) -> None:
        self.calls.append(f"{self.name} expires")


def _check_soon(purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
    purgatory.check_and_complete_soon("a")
    clock.advance(0)


End = Callable[[DelayedOperationPurgatory, VirtualClock, DelayedOperation[Any]], object]
ENDS: Final[dict[str, End]] = {
    # How an operation may end that waits on "a" and "b" for at most ten seconds: by a check only if it is ready.
    "check": lambda purgatory, clock, operation: purgatory.check_and_complete("a"),
    "check with a limit": lambda purgatory, clock, operation: purgatory.check_and_complete("a", limit=100),
    "check soon": lambda purgatory, clock, operation: _check_soon(purgatory, clock),
    "deadline": lambda purgatory, clock, operation: clock.advance(10.0),
    "force": lambda purgatory, clock, operation: operation.force_complete(),
    "cancel": lambda purgatory, clock, operation: operation.cancel(),
    "cancel for key": lambda purgatory, clock, operation: purgatory.cancel_for_key("b"),
    "cancel all": lambda purgatory, clock, operation: purgatory.cancel_all(),
    "complete all": lambda purgatory, clock, operation: purgatory.complete_all(),
    "close": lambda purgatory, clock, operation: purgatory.close(),
    "aclose": lambda purgatory, clock, operation: list(purgatory.aclose().__await__()),
}


class Late(Flag):
    """Raises after it has completed."""

    def try_complete(self) -> bool:
        if self.ready:
            self.force_complete()
            raise LookupError
        return False


class Moody:
    """A key whose lookup fails in `__hash__` after `left` further calls of it, or in `__eq__`."""

    error: type[BaseException] = LookupError
    unequal = False

    def __init__(self, left: int | None = None) -> None:
        self.left = left

    def __hash__(self) -> int:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise self.error
        return 1

    def __eq__(self, other: object) -> bool:
        if self.unequal or (isinstance(other, Moody) and other.unequal):
            raise self.error
        return self is other

    def sour(self, mood: str = "no hash") -> None:
        if mood == "no hash":
            self.left = 0
        else:
            self.unequal = True

    def sweeten(self) -> None:
        self.left = None
        self.unequal = False


class Note(TimerTask):
    """Notes the time at which it runs."""

    def __init__(self, clock: VirtualClock, name: str = "note") -> None:
        super().__init__()
        self.clock = clock
        self.name = name
        self.ran: list[float] = []

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def run(self) -> None:
        self.ran.append(self.clock.time())
