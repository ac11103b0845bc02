"""Any public call at any point: one call is made inside another, at each of its steps.

A finalizer may run after any call of a function in C (CPython 3.12's collector runs there), a key's `__hash__` and an
operation's methods at any entry of a Python function. `sys.setprofile` sees both. So while an *outer* call runs, at its
n-th step of these kinds one *injected* call is made, and for each n once. Then the invariants of the world are checked.

Nothing here is an `assert`: it works under `python -O` too.
"""

import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from types import CodeType, FrameType
from typing import Any, Final, TypeVar

import purgatory as package
from purgatory import PurgatoryError


class Broken(Exception):
    """An invariant does not hold."""


def require(holds: object, problem: str) -> None:
    """`assert`, under `-O` too."""
    if not holds:
        raise Broken(problem)


# --- Steps ------------------------------------------------------------------------------------------------------------

_PACKAGE: Final = os.path.dirname(os.path.abspath(package.__file__)) + os.sep
_methods: Final[set[CodeType]] = set()
"""The code of methods of operations, keys and listeners: their entries are steps too."""

_in_package: Final[dict[CodeType, bool]] = {}

Method = TypeVar("Method", bound=Callable[..., Any])


def is_step(method: Method) -> Method:
    """Make the entry of a method a step."""
    _methods.add(method.__code__)
    return method


class Injector:
    """Makes a call at the n-th step of the `with` block, or counts the steps."""

    def __init__(self, nth: int | None, inject: Callable[[], object]) -> None:
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

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            code = frame.f_code
            ours = _in_package.get(code)
            if ours is None:
                ours = _in_package[code] = code in _methods or code.co_filename.startswith(_PACKAGE)
        elif event == "c_return" or event == "c_exception":
            ours = _in_package.get(frame.f_code) and frame.f_code not in _methods
        else:
            return
        if not ours:
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


def each_step() -> Iterator[Injector]:
    """An injector for each step of what is done `with` it, whose `inject` is to be set; the last one finds no step."""
    for nth in count():
        injector = Injector(nth, int)
        yield injector
        if not is_expected(injector.error):
            raise Broken(f"injected at {injector.where}, raises") from injector.error
        if injector.where == "nowhere":
            return


class _Cycle:
    """Garbage that the collector finds."""

    def __init__(self) -> None:
        self.itself = self


@contextmanager
def finalizing(nth: int, finalizer: Callable[[], object]) -> Iterator[None]:
    """Have the collector call `finalizer` at the `nth` allocation of a container, up to CPython 3.11, or about then.

    There the collector runs in the middle of an expression, where a profile function is not called.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.disable()
    weakref.finalize(_Cycle(), finalizer).atexit = False
    # Lists and tuples are allocated only when the interpreter's free ones are in use.
    in_use: list[object] = [[[] for _ in range(100)]]
    in_use += [(n,) for n in range(2100)]
    in_use += [(n, n) for n in range(2100)]
    gc.set_threshold(gc.get_count()[0] + nth, 10_000, 10_000)
    gc.enable()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.collect()


def is_expected(error: BaseException | None) -> bool:
    """Whether a call at the wrong moment may raise `error`."""
    match error:
        case None | PurgatoryError():
            return True
        case RuntimeError():
            return "advanced" in str(error)
        case ValueError():
            return any(reason in str(error) for reason in ("in a timer already", "move backwards"))
    return False


# --- All combinations -------------------------------------------------------------------------------------------------


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
        lines = [f"{failed} of {self.combinations} combinations fail"]
        for problem, places in sorted(self.failures.items(), key=lambda item: -len(item[1])):
            lines.append(f"{len(places)} times: {problem}")
            lines += [f"        {place}" for place in places[:4]]
        return "\n".join(lines[:60])


def count_steps(part: Part, variant: str, outer: str) -> int:
    """The number of steps of an outer call, without an injected one. Raises `Broken` if it goes wrong by itself."""
    world = part.make(variant)
    injector = Injector(None, int)
    problem = _problem(world, part.outer[outer], injector, 0)
    if problem is not None:
        raise Broken(f"{outer} by itself: {problem}")
    return injector.steps


def inject_everywhere(
    part: Part, variant: str, outer: str, *, every: Callable[[int, int], bool] = lambda step, call: True
) -> Report:
    """Make each injected call at each step of `outer`, for the pairs of numbers that `every` chooses."""
    report = Report()
    steps = count_steps(part, variant, outer)
    for step in range(steps):
        for number, (name, call) in enumerate(part.injected.items()):
            if not every(step, number):
                continue
            report.combinations += 1
            world = part.make(variant)
            injector = Injector(step, lambda: call(world))  # noqa: B023 - called in this iteration
            problem = _problem(world, part.outer[outer], injector, step + number)
            if problem is not None:
                report.failures.setdefault(problem, []).append(f"{name} at {injector.where}")
            if report.combinations % 500 == 0:
                gc.collect()
    return report


def _problem(world: Any, outer: Callable[[Any], object], injector: Injector, number: int) -> str | None:
    """Make the calls in `world`. Returns the first problem."""
    unraisable: list[str] = []
    hook = sys.unraisablehook
    sys.unraisablehook = lambda raised: unraisable.append(repr(raised.exc_value))
    error: BaseException | None = None
    try:
        try:
            with injector:
                outer(world)
        except Exception as raised:
            error = raised
        for caught, kind in ((error, "raises"), (injector.error, "injected, raises")):
            require(is_expected(caught), f"{kind} {caught!r} {place(caught)}")
            del caught
        # No variable keeps an exception from here on.
        error = injector.error = None
        world.check_now()
        world.check_later(number % 2 == 0, number // 2)
        require(not world.clock.faults, f"reported: {world.clock.faults}")
        require(not unraisable, f"raised in finalizers: {unraisable}")
    except Exception as raised:
        name = "" if isinstance(raised, Broken) else f"{type(raised).__qualname__} {place(raised)} "
        return f"{name}{raised}"
    finally:
        sys.unraisablehook = hook
    return None


def place(error: BaseException | None) -> str:
    """The file and line at which `error` was raised."""
    traceback = None if error is None else error.__traceback__
    if traceback is None:
        return ""
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f"at {os.path.basename(traceback.tb_frame.f_code.co_filename)}:{traceback.tb_lineno}"
