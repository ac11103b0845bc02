"""A timer with tasks on several levels, and the calls of it."""

from collections.abc import Callable
from typing import Any, Final

from purgatory import TimerTask, WheelTimer
from tests.support.injection import is_step, require
from tests.support.invariants import check_timer, check_whole
from tests.support.worlds.common import FAR, START, Clock, Moves


class Task(TimerTask):
    """Counts how often it runs."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.ran: list[float] = []
        """Seconds by which each run was early."""
        self.running = False
        self.moves = Moves()
        self.given_up = False
        """Whether it was cancelled, or forgotten by a close."""

    def run(self) -> None:
        self.running = True
        self.ran.append(self.moves.earliest - self.clock.time())
        self.then()

    @is_step
    def then(self) -> None:
        """Be a step: a task that is rescheduled from here on runs again."""


class TimerWorld:
    """A timer with tasks on several levels, and calls."""

    def __init__(self, variant: str) -> None:
        self.clock = Clock(START)
        self.timer = WheelTimer(self.clock)
        self.tasks: list[Task] = []
        self.handles: list[Any] = []
        for delay in (0.0, 0.005, 0.1, 2.0, 50.0):
            self.add(delay)
            self.call_later(delay)
        self.subject, self.handle = self.tasks[2], self.handles[1]
        self.other = self.tasks[6]

    def add(self, delay: float) -> Task:
        task = Task(self.clock)
        self.tasks.append(task)
        with task.moves.to(self.clock.time() + delay):
            self.timer.add(task, self.clock.time() + delay)
        return task

    def add_again(self, task: Task) -> None:
        with task.moves.to(self.clock.time() + 0.5):
            self.timer.add(task, self.clock.time() + 0.5)
            task.given_up = True  # it may run twice, or have run before

    def call_later(self, delay: float) -> None:
        task = Task(self.clock)
        self.tasks.append(task)
        with task.moves.to(self.clock.time() + delay):
            self.handles.append(self.timer.call_later(delay, task.run))

    def cancel(self, task: Task) -> None:
        waits = not task.ran
        if self.timer.cancel(task) and waits:
            require(not task.ran or task.given_up, "it ran though cancel() has taken it out")
            task.given_up = True

    def cancel_handle(self) -> None:
        self.tasks[3].given_up = True
        self.handle.cancel()

    def reschedule(self, task: Task, delay: float) -> None:
        if task.running:
            task.given_up = True  # it runs again
        with task.moves.to(self.clock.time() + delay):
            self.timer.reschedule(task, self.clock.time() + delay)
            if task.running:
                task.given_up = True

    def close(self) -> None:
        for task in self.tasks:
            task.given_up = True
        self.timer.close()
        for task in self.tasks:
            task.given_up = True

    def check_whole(self) -> None:
        check_whole(self.timer)

    def check_now(self) -> None:
        for task in self.tasks:
            if task.ran and not task.given_up:
                require(len(task.ran) == 1, f"it ran {len(task.ran)} times")
            require(max(task.ran, default=0) <= 0, f"it ran {task.ran} s early")
        check_timer(self.timer)

    def check_later(self, by_deadlines_first: bool, which: int) -> None:
        waiting = len(self.timer)
        require(waiting <= len(self.tasks), f"{waiting} wait, of {len(self.tasks)}")
        self.clock.advance(FAR)
        for task in self.tasks:
            require(len(task.ran) == 1 or task.given_up, f"due at {task.moves.possible}, it ran {len(task.ran)} times")
        self.check_now()
        require(len(self.timer) == 0, f"{len(self.timer)} are in the timer")


OF_A_TIMER: Final[dict[str, Callable[[TimerWorld], object]]] = {
    "add": lambda world: world.add(0.05),
    "add, earlier than all": lambda world: world.add(0.0),
    "add, later than all": lambda world: world.add(5000.0),
    "call_later": lambda world: world.call_later(0.003),
    "cancel": lambda world: world.cancel(world.subject),
    "cancel a handle": lambda world: world.cancel_handle(),
    "reschedule earlier": lambda world: world.reschedule(world.subject, 0.001),
    "reschedule later": lambda world: world.reschedule(world.subject, 3.0),
    "reschedule within the bucket": lambda world: world.reschedule(world.other, 2.0005),
    "reschedule to now": lambda world: world.reschedule(world.other, 0.0),
    "close": lambda world: world.close(),
    "advance by nothing": lambda world: world.clock.advance(0.0),
    "advance to a deadline": lambda world: world.clock.advance(0.006),
    "advance by a cascade": lambda world: world.clock.advance(0.2),
    "advance by everything": lambda world: world.clock.advance(100.0),
}

INTO_A_TIMER: Final[dict[str, Callable[[TimerWorld], object]]] = {
    **OF_A_TIMER,
    "add again": lambda world: world.add_again(world.subject),
    "cancel another": lambda world: world.cancel(world.other),
    "reschedule another": lambda world: world.reschedule(world.other, 0.001),
    "add to the same bucket": lambda world: world.add(0.1),
    "look": lambda world: (len(world.timer), world.timer.statistics(), repr(world.timer), world.timer.wheels),
}
