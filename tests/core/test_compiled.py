"""Users see the same classes in both cores: names, signatures, documentation, arguments by name."""

import inspect
from typing import Any

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, VirtualClock, WheelTimer, _speedups
from purgatory._speedups import python_of
from purgatory._timer.handle import TimerHandle
from tests.support.operations import Flag, Note
from tests.support.paths import ROOT

CLASSES = [DelayedOperation, DelayedOperationPurgatory, TimerHandle, WheelTimer]

in_c = pytest.mark.skipif(_speedups.c is None, reason="the core is the one in Python")


def _parameters(method: Any) -> list[tuple[str, Any, Any]]:
    return [(each.name, each.kind, each.default) for each in list(inspect.signature(method).parameters.values())[1:]]


@in_c
@pytest.mark.parametrize("made", CLASSES)
def test_methods_in_c_are_documented_as_in_python(made: type) -> None:
    python = python_of(made)
    assert python is not made
    names = [name for name in vars(python) if not name.startswith("_")]
    assert names
    for name in names:
        ours, theirs = getattr(made, name), getattr(python, name)
        assert inspect.getdoc(ours) == inspect.getdoc(theirs), name
        if callable(theirs):
            assert _parameters(ours) == _parameters(theirs), name


@in_c
@pytest.mark.skipif(not (ROOT / "purgatory").is_dir(), reason="needs the source of the package")
def test_docstrings_in_c_are_those_of_the_python() -> None:
    from purgatory._speedups.build import docs

    assert (ROOT / "purgatory" / "_speedups" / "docs.h").read_text() == docs()


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
    timer.call_later(5.0, callback=list).cancel()
    purgatory.close()


@pytest.mark.parametrize(
    "call",
    [
        "purgatory.try_complete_else_watch()",
        "purgatory.try_complete_else_watch(operation)",
        "purgatory.try_complete_else_watch(operation, ['key'], 1)",
        "purgatory.try_complete_else_watch(operation, ['key'], keys=['key'])",
        "purgatory.try_complete_else_watch(operation, ['key'], key='key')",
        "purgatory.check_and_complete()",
        "purgatory.check_and_complete('key', None, None)",
        "purgatory.check_and_complete('key', key='key')",
        "operation.force_complete(1)",
        "operation.cancel(1)",
        "timer.add(note)",
        "timer.add(note, 1.0, 2.0)",
        "timer.add(note, time=1.0)",
        "timer.cancel()",
        "timer.cancel(note, note)",
        "timer.reschedule(note)",
        "timer.call_at(1.0)",
        "timer.call_at(1.0, list, function=list)",
        "timer.call_later(callback=list)",
        "timer.call_later(1.0, list, callback=list)",
        "timer.time(1)",
        "timer.close(1)",
    ],
)
def test_wrong_arguments_are_a_type_error_and_change_nothing(call: str) -> None:
    clock = VirtualClock()
    purgatory = DelayedOperationPurgatory(clock=clock)
    operation, note = Flag(1.0), Note(clock)
    names = {"purgatory": purgatory, "operation": operation, "timer": purgatory.timer, "note": note}
    with pytest.raises(TypeError):
        eval(call, names)
    assert purgatory.watched == purgatory.num_delayed == len(purgatory.timer) == 0
    purgatory.try_complete_else_watch(operation, ["key"])
    purgatory.close()


@in_c
@pytest.mark.parametrize(
    "attribute",
    [
        "owner.time",
        "owner.deferred",
        "owner.lists",
        "owner.timer",
        "lists._by_key",
        "lists._register",
        "lists.revived",
        "watchers.key",
        "watchers.entries",
    ],
)
def test_attributes_that_c_relies_on_are_not_deleted(attribute: str) -> None:
    purgatory = DelayedOperationPurgatory(clock=VirtualClock())
    operation = purgatory.try_complete_else_watch(Flag(1.0), ["key"])
    owner = purgatory._owner
    names = {"owner": owner, "lists": owner.lists, "watchers": owner.lists.find("key")}
    with pytest.raises((AttributeError, TypeError)):
        exec(f"del {attribute}", names)
    if attribute not in ("owner.time", "owner.deferred", "watchers.key"):
        with pytest.raises(TypeError):
            exec(f"{attribute} = 5", names)
    operation.ready = True
    assert purgatory.check_and_complete("key") == 1
    assert purgatory.watched == 0
    purgatory.close()


@in_c
def test_functions_in_c_refuse_other_objects() -> None:
    c = _speedups.c
    assert c is not None
    purgatory = DelayedOperationPurgatory(clock=VirtualClock())
    operation = purgatory.try_complete_else_watch(Flag(1.0), ["key"])
    owner: Any = purgatory._owner
    for call in (
        c.try_all,
        c.try_each,
        lambda: c.try_all(owner, 5),
        lambda: c.try_each(5, []),
        lambda: owner.lists.compact(5),
        owner.timer._run_until,
        lambda: operation._purgatory_attempt(5),  # type: ignore[arg-type]
        lambda: operation._purgatory_announce(5),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError):
            call()
    assert purgatory.num_delayed == purgatory.watched == 1
    purgatory.close()
