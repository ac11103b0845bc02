"""Users see the same classes on both cores: names, signatures, documentation, arguments by name."""

import inspect
import os
import subprocess
import sys
from typing import Any

import pytest

from purgatory import (
    DelayedOperation,
    DelayedOperationPurgatory,
    TimerTask,
    VirtualClock,
    WheelTimer,
)
from tests.support.operations import Flag, Note

SIGNATURES = {
    DelayedOperation: {
        "": "(timeout)",
        "force_complete": "(self)",
        "cancel": "(self)",
        "done": "(self)",
        "as_future": "(self)",
    },
    DelayedOperationPurgatory: {
        "": "(name='purgatory', *, tick=0.001, wheel_size=20, purge_interval=1000, max_pending=None, clock=None)",
        "try_complete_else_watch": "(self, operation, keys)",
        "check_and_complete": "(self, key, limit=None)",
    },
    WheelTimer: {
        "": "(clock=None, *, tick=0.001, wheel_size=20)",
        "add": "(self, task, deadline)",
        "add_later": "(self, task, delay)",
        "cancel": "(self, task)",
        "reschedule": "(self, task, deadline)",
        "reschedule_later": "(self, task, delay)",
        "call_at": "(self, when, callback, *args, context=None)",
        "call_later": "(self, delay, callback, *args, context=None)",
        "close": "(self)",
    },
    TimerTask: {"": "()", "run": "(self)"},
}


@pytest.mark.parametrize(
    ("made", "name", "expected"),
    [(made, name, expected) for made, methods in SIGNATURES.items() for name, expected in methods.items()],
)
def test_signatures_have_names_and_defaults_and_everything_is_documented(made: type, name: str, expected: str) -> None:
    documented = getattr(made, name) if name else made
    signature = inspect.signature(documented)
    parameters = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    bare = [
        each.replace(kind=each.POSITIONAL_OR_KEYWORD) if each.kind is each.POSITIONAL_ONLY else each
        for each in parameters
    ]
    assert str(inspect.Signature(bare)) == expected
    assert inspect.getdoc(documented)
    assert made.__name__ in repr(made)


def test_arguments_may_be_named() -> None:
    clock = VirtualClock()
    purgatory = DelayedOperationPurgatory(clock=clock)
    operation = Flag(timeout=1.0)
    assert purgatory.try_complete_else_watch(operation=operation, keys=["key"]) is operation
    assert purgatory.check_and_complete(key="key", limit=None) == 0
    timer = purgatory.timer
    note = Note(clock)
    timer.add(task=note, deadline=2.0)
    timer.reschedule(note, deadline=3.0)
    assert timer.cancel(task=note)
    timer.call_at(when=4.0, callback=list).cancel()
    timer.call_later(delay=5.0, callback=list, context=None).cancel()
    purgatory.close()


@pytest.mark.parametrize(
    "call",
    [
        "purgatory.try_complete_else_watch()",
        "purgatory.try_complete_else_watch(operation)",
        "purgatory.try_complete_else_watch(operation, ['key'], 1)",
        "purgatory.try_complete_else_watch(operation, ['key'], keys=['key'])",
        "purgatory.try_complete_else_watch(operation, ['key'], key='key')",
        "purgatory.check_and_complete('key', None, None)",
        "purgatory.check_and_complete('key', key='key')",
        "operation.force_complete(1)",
        "operation.cancel(1)",
        "timer.add(note)",
        "timer.add(note, 1.0, 2.0)",
        "timer.add(note, time=1.0)",
        "timer.cancel(note, note)",
        "timer.reschedule(note)",
        "timer.reschedule_later(note)",
        "timer.call_at(1.0, list, function=list)",
        "timer.call_later(callback=list)",
        "timer.time(1)",
        "timer.close(1)",
    ],
)
def test_wrong_arguments_are_a_type_error_and_change_nothing(call: str) -> None:
    clock = VirtualClock()
    purgatory = DelayedOperationPurgatory(clock=clock)
    operation, note = Flag(1.0), Note(clock)
    names: dict[str, Any] = {"purgatory": purgatory, "operation": operation, "timer": purgatory.timer, "note": note}
    with pytest.raises(TypeError):
        eval(call, names)
    assert purgatory.watched == purgatory.num_delayed == len(purgatory.timer) == 0
    purgatory.try_complete_else_watch(operation, ["key"])
    purgatory.close()


OLD_EXTENSION = """
import sys, types
from importlib.machinery import ModuleSpec

old = types.ModuleType("purgatory._speedups.c")
old.__spec__ = ModuleSpec("purgatory._speedups.c", None)
for name in ("Entry", "OperationBase", "OwnerBase", "PurgatoryBase", "TimerBase", "TimerEntry", "Watchers"):
    setattr(old, name, type(name, (), {}))
sys.modules["purgatory._speedups.c"] = old

import purgatory
from purgatory import DelayedOperation, DelayedOperationPurgatory, TimerTask, WheelTimer

classes = (DelayedOperation, DelayedOperationPurgatory, TimerTask, WheelTimer)
bases = {base.__module__.split(".")[1] for each in classes for base in each.__mro__ if base.__name__.endswith("Base")}
print(purgatory.__core__, sorted(bases))
"""


def test_an_extension_that_lacks_a_class_replaces_none() -> None:
    environment = {**os.environ, "PURGATORY_PURE": ""}
    shown = subprocess.run([sys.executable, "-c", OLD_EXTENSION], env=environment, capture_output=True, text=True)
    assert shown.stdout == "Python ['_core', '_timer']\n", shown.stderr
