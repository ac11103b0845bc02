"""One call is made inside another, at each point of a sort: the steps of *callbacks*, and those *elsewhere*.

Callbacks may call anything: the methods of operations, listeners, tasks, the clock, the iteration of keys. `is_step`
marks them, and while an *outer* call runs, at the n-th entry of one of them an *injected* call is made, for each n
once. Then the invariants of the world are checked. Elsewhere are all other entries of Python functions in the package
and all returns of C functions there, at which finalizers and handlers of signals may run, and the methods of keys.
There odd keys break their contract too.
"""

import gc
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, Final, Literal, TypeVar

import purgatory as package
from purgatory import PurgatoryError


class Broken(Exception):
    """An invariant does not hold."""


def require(holds: object, problem: str) -> None:
    """`assert`, under `-O` too."""
    if not holds:
        raise Broken(problem)


Points = Literal["callbacks", "elsewhere"]

_PACKAGE: Final = os.path.dirname(os.path.abspath(package.__file__)) + os.sep
_callbacks: Final[set[CodeType]] = set()
_methods_of_keys: Final[set[CodeType]] = set()

Method = TypeVar("Method", bound=Callable[..., Any])


def is_step(method: Method) -> Method:
    """Make the entry of a callback a step."""
    _callbacks.add(method.__code__)
    return method


def of_a_key(method: Method) -> Method:
    """Make the entry of a key's `__hash__` or `__eq__` a step elsewhere: it must not call the purgatory."""
    _methods_of_keys.add(method.__code__)
    return method


class Injector:
    """Makes a call at the n-th step of the `with` block, or counts the steps."""

    def __init__(self, points: Points, nth: int | None, inject: Callable[[], object]) -> None:
        self.points = points
        self.nth = nth
        self.steps = 0
        self.where = "nowhere"
        self.error: BaseException | None = None
        self.inject = inject

    def __enter__(self) -> "Injector":
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)

    def _is_step(self, frame: FrameType, event: str) -> bool:
        code = frame.f_code
        if self.points == "callbacks":
            return event == "call" and code in _callbacks
        if code in _callbacks or event not in ("call", "c_return", "c_exception"):
            return False
        return code.co_filename.startswith(_PACKAGE) or (event == "call" and code in _methods_of_keys)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self._is_step(frame, event):
            return
        if self.steps == self.nth:
            sys.setprofile(None)
            name = "entry" if event == "call" else f"after {getattr(argument, '__qualname__', argument)}"
            path = frame.f_code.co_filename.removeprefix(_PACKAGE)
            self.where = f"{path}:{frame.f_lineno} in {frame.f_code.co_name}(), {name}"
            try:
                self.inject()
            except BaseException as error:
                self.error = error
        self.steps += 1


def is_expected(error: BaseException | None) -> bool:
    """Whether a call at the wrong moment may raise `error`."""
    reasons = ("being advanced", "in a timer already", "move backwards", "needs a key or a timeout")
    if isinstance(error, (RuntimeError, ValueError)) and any(reason in str(error) for reason in reasons):
        return True
    return error is None or isinstance(error, PurgatoryError)


@dataclass(frozen=True)
class Part:
    """A world, and the calls that are made in it."""

    make: Callable[[str], Any]
    outer: dict[str, Callable[[Any], object]]
    injected: dict[str, Callable[[Any], object]]
    variants: tuple[str, ...] = ("plain",)


@dataclass
class Report:
    """The result of many combinations."""

    combinations: int = 0
    failures: dict[str, list[str]] = field(default_factory=dict)
    """The injected calls and their places, by problem."""

    def __str__(self) -> str:
        failed = sum(map(len, self.failures.values()))
        problems = [f"{len(places)} times: {problem}: {places[:3]}" for problem, places in self.failures.items()]
        return "\n".join([f"{failed} of {self.combinations} combinations fail", *problems[:30]])


def inject_everywhere(
    part: Part, variant: str, outer: str, points: Points, report: Report, every: Callable[[int, int], bool]
) -> None:
    """Make each injected call at each step of `outer`, for the pairs of numbers that `every` chooses.

    Elsewhere the contract is broken, so all that must hold afterwards is that the structure is whole.
    """
    counter = Injector(points, None, int)
    problem = _problem(part.make(variant), part.outer[outer], counter, 0)
    if problem is not None:
        raise Broken(f"{outer} on its own: {problem}")
    for step in range(counter.steps):
        for number, (name, call) in enumerate(part.injected.items()):
            if not every(step, number):
                continue
            report.combinations += 1
            world = part.make(variant)
            injector = Injector(points, step, lambda: call(world))  # noqa: B023 - called in this iteration
            problem = _problem(world, part.outer[outer], injector, step + number)
            if problem is not None:
                report.failures.setdefault(problem, []).append(f"{name} at {injector.where}")
            if report.combinations % 500 == 0:
                gc.collect()


def _problem(world: Any, outer: Callable[[Any], object], injector: Injector, number: int) -> str | None:
    """Make the calls in `world`. Returns the first problem."""
    error: BaseException | None = None
    if injector.points == "elsewhere" and injector.nth is not None:
        world.misbehave(number)
    try:
        try:
            with injector:
                outer(world)
        except Exception as raised:
            error = raised
        if injector.points == "elsewhere" and injector.nth is not None:
            world.check_whole()
            return None
        for caught, kind in ((error, "raises"), (injector.error, "injected, raises")):
            require(is_expected(caught), f"{kind} {caught!r} {place(caught)}")
            del caught
        # No variable keeps an exception from here on.
        error = injector.error = None
        world.check_now()
        world.check_later(number % 2 == 0, number // 2)
        require(not world.clock.faults, f"reported: {world.clock.faults}")
    except Exception as raised:
        name = "" if isinstance(raised, Broken) else f"{type(raised).__qualname__} {place(raised)} "
        return f"{name}{raised}"
    return None


def place(error: BaseException | None) -> str:
    """The file and line at which `error` was raised."""
    frames = traceback.extract_tb(None if error is None else error.__traceback__)
    return f"at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
