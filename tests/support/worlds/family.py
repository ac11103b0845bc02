"""Thresholds and an idle tracker, and the calls of them."""

from collections.abc import Callable, Hashable
from typing import Final

from purgatory import DelayedOperation, DelayedOperationPurgatory, IdleTracker, PurgatoryError, ThresholdPurgatory
from tests.support.injection import is_step, require
from tests.support.invariants import check_purgatory, check_timer, check_whole
from tests.support.worlds.common import FAR, START, Clock, OddKey


class ThresholdWorld:
    """Waits for several thresholds, several for one of them."""

    def __init__(self, variant: str) -> None:
        self.clock = Clock(START)
        self.thresholds = ThresholdPurgatory(10, DelayedOperationPurgatory(clock=self.clock))
        self.waits: list[tuple[int, DelayedOperation[int]]] = []
        self.highest = 10
        for threshold, timeout in ((11, None), (11, 0.005), (12, 2.0), (13, None), (20, 0.1)):
            self.reach(threshold, timeout)
        self.subject = self.waits[1][1]
        self.forced = False

    def reach(self, threshold: int, timeout: float | None) -> None:
        self.waits.append((threshold, self.thresholds.reach(threshold, timeout)))

    def advance(self, value: int, soon: bool = False) -> None:
        self.highest = max(self.highest, value)
        if soon:
            self.thresholds.advance_soon(value)
            self.clock.advance(0.0)
        else:
            self.thresholds.advance(value)

    def force(self) -> None:
        self.forced = True
        self.subject.force_complete()

    def aclose(self) -> None:
        for _ in self.thresholds.aclose().__await__():
            pass

    def check_whole(self) -> None:
        check_whole(self.thresholds.purgatory.timer, self.thresholds.purgatory)

    def check_now(self) -> None:
        purgatory = self.thresholds.purgatory
        require(self.thresholds.value == self.highest, f"the value is {self.thresholds.value}, not {self.highest}")
        pending = [(threshold, wait) for threshold, wait in self.waits if not wait.done()]
        require(self.thresholds.num_waiting == len(pending), f"num_waiting is {self.thresholds.num_waiting}: {pending}")
        require(not (purgatory.closed and pending), f"closed, and {pending} are pending")
        check_purgatory(purgatory)

    def check_later(self, by_deadlines_first: bool, which: int) -> None:
        # Thresholds passed by an injected advance_soon() complete in a later iteration.
        if not by_deadlines_first:
            self.clock.advance(0.0)
            for threshold, wait in self.waits:
                require(
                    wait.done() or threshold >= self.highest, f"{threshold} is passed by {self.highest}: lost wake-up"
                )
        self.clock.advance(FAR)
        self.advance(1000)
        self.check_now()
        require(all(wait.done() for _, wait in self.waits), f"lost wake-ups: {self.waits}")
        for threshold, wait in self.waits:
            if wait.outcome in ("satisfied", "completed_at_once") and not (self.forced and wait is self.subject):
                require(wait.result() > threshold, f"{wait.result()} is no more than {threshold}")
            if wait.outcome == "failed":
                require(isinstance(wait.exception(), LookupError), f"it failed with {wait.exception()!r}")
        require(len(self.thresholds.purgatory.timer) == 0, "some are left in the timer")
        self.thresholds.close()
        require(self.thresholds.purgatory.watched == 0, "some entries are left")


OF_THRESHOLDS: Final[dict[str, Callable[[ThresholdWorld], object]]] = {
    "reach": lambda world: world.reach(11, 0.05),
    "reach, new": lambda world: world.reach(14, None),
    "reach, lowest": lambda world: world.reach(10, 0.5),
    "reach, passed": lambda world: world.reach(5, 0.5),
    "advance": lambda world: world.advance(12),
    "advance beyond all": lambda world: world.advance(100),
    "advance_soon": lambda world: world.advance(12, soon=True),
    "advance_soon beyond all": lambda world: world.advance(100, soon=True),
    "fail_all": lambda world: world.thresholds.fail_all(LookupError("all")),
    "complete_all": lambda world: world.thresholds.complete_all(),
    "close": lambda world: world.thresholds.close(),
    "aclose": lambda world: world.aclose(),
    "advance the clock": lambda world: world.clock.advance(0.006),
    "advance the clock far": lambda world: world.clock.advance(100.0),
}

INTO_THRESHOLDS: Final[dict[str, Callable[[ThresholdWorld], object]]] = {
    **OF_THRESHOLDS,
    "cancel": lambda world: world.subject.cancel(),
    "force_complete": lambda world: world.force(),
    "reschedule": lambda world: world.subject.reschedule(0.001),
    "cancel_for_key": lambda world: world.thresholds.purgatory.cancel_for_key(11),
    "check": lambda world: world.thresholds.purgatory.check_and_complete(11),
    "cancel_all": lambda world: world.thresholds.purgatory.cancel_all(),
}


class IdleWorld:
    """Keys that are tracked, some of them nearly idle."""

    def __init__(self, variant: str) -> None:
        self.variant = variant
        self.clock = Clock(START)
        self.idle: list[tuple[str, float]] = []
        self.tracker: IdleTracker[Hashable] = IdleTracker(1.0, self.on_idle, clock=self.clock)
        self.touched: dict[str, list[float]] = {}
        self.discarded: set[str] = set()
        for name in "abc":
            self.touch(name)
            self.clock.advance(0.3)

    def key(self, name: str) -> Hashable:
        return OddKey(name) if self.variant == "odd keys" else name

    @is_step
    def on_idle(self, key: Hashable) -> None:
        self.idle.append((str(key), self.clock.time()))

    def touch(self, name: str) -> None:
        touches = self.touched.setdefault(name, [])
        touches.append(self.clock.time())
        try:
            self.tracker.touch(self.key(name))
        except PurgatoryError:
            touches.pop()
            raise

    def discard(self, name: str) -> None:
        self.discarded.add(name)
        self.tracker.discard(self.key(name))

    def close(self) -> None:
        self.discarded.update(self.touched)
        self.tracker.close()
        self.discarded.update(self.touched)

    def check_whole(self) -> None:
        check_whole(self.tracker.timer)

    def check_now(self) -> None:
        for name, time in self.idle:
            last = max((touch for touch in self.touched[name] if touch < time), default=time - 1.0)
            if len(self.touched[name]) == 1:
                require(time - last >= 1.0, f"{name} is idle {time - last} s after its touch")
        check_timer(self.tracker.timer)

    def check_later(self, by_deadlines_first: bool, which: int) -> None:
        require(len(self.tracker) == len(self.tracker.timer), "each tracked key has a task in the timer")
        self.clock.advance(FAR)
        self.check_now()
        require(len(self.tracker) == len(self.tracker.timer) == 0, f"{self.tracker!r} tracks for ever")
        for name, touches in self.touched.items():
            calls = sum(name == each for each, _ in self.idle)
            require(calls <= len(touches), f"on_idle was called {calls} times with {name}")
            require(calls or name in self.discarded, f"on_idle was never called with {name}")


OF_AN_IDLE_TRACKER: Final[dict[str, Callable[[IdleWorld], object]]] = {
    "touch": lambda world: world.touch("a"),
    "touch, new": lambda world: world.touch("d"),
    "discard": lambda world: world.discard("a"),
    "discard, not tracked": lambda world: world.tracker.discard(world.key("e")),
    "close": lambda world: world.close(),
    "advance": lambda world: world.clock.advance(0.2),
    "advance far": lambda world: world.clock.advance(5.0),
}

INTO_AN_IDLE_TRACKER: Final[dict[str, Callable[[IdleWorld], object]]] = {
    **OF_AN_IDLE_TRACKER,
    "touch another": lambda world: world.touch("b"),
    "discard another": lambda world: world.discard("b"),
    "discard new": lambda world: world.discard("d"),
    "look": lambda world: (list(world.tracker), len(world.tracker), world.key("a") in world.tracker),
}
