"""`SystemExit` and `KeyboardInterrupt` of one operation are raised after all others are done."""

from collections.abc import Callable

import pytest

from purgatory import DelayedOperationPurgatory, FinishedOperation, ThresholdPurgatory, VirtualClock
from tests.support.operations import FaultLog, Flag

Way = Callable[[DelayedOperationPurgatory, VirtualClock], object]

EXITS = [SystemExit, KeyboardInterrupt]


def soon(purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
    purgatory.check_and_complete_soon("key")
    clock.advance(0)


COMPLETE: dict[str, Way] = {
    "check_and_complete": lambda purgatory, clock: purgatory.check_and_complete("key"),
    "check_and_complete with a limit": lambda purgatory, clock: purgatory.check_and_complete("key", limit=5),
    "check_and_complete_soon": soon,
    "complete_all": lambda purgatory, clock: purgatory.complete_all(),
    "close": lambda purgatory, clock: purgatory.close(),
    "aclose": lambda purgatory, clock: list(purgatory.aclose().__await__()),
    "deadline": lambda purgatory, clock: clock.advance(1.0),
}
CANCEL: dict[str, Way] = {
    "cancel_for_key": lambda purgatory, clock: purgatory.cancel_for_key("key"),
    "cancel_all": lambda purgatory, clock: purgatory.cancel_all(),
}


class Exiting(Flag):
    """Asks to exit in one of its methods."""

    def __init__(self, method: str, error: type[BaseException]) -> None:
        super().__init__(1.0)
        self.method = method
        self.error = error

    def try_complete(self) -> bool:
        if self.ready and self.method == "try_complete":
            raise self.error
        return super().try_complete()

    def on_complete(self) -> str:
        if self.method == "on_complete":
            raise self.error
        return super().on_complete()


def check_over(purgatory: DelayedOperationPurgatory, clock: FaultLog) -> None:
    assert (purgatory.num_delayed, len(purgatory.timer)) == (0, 0)
    assert clock.faults == [], "raised, and not reported as well"
    clock.advance(10.0)
    assert (purgatory.num_delayed, len(purgatory.timer)) == (0, 0)


@pytest.mark.parametrize("error", EXITS)
@pytest.mark.parametrize("method", ["try_complete", "on_complete"])
@pytest.mark.parametrize("position", [0, 2, 4])
@pytest.mark.parametrize("way", COMPLETE)
def test_other_operations_complete_before_a_request_to_exit_is_raised(
    purgatory: DelayedOperationPurgatory,
    clock: FaultLog,
    way: str,
    position: int,
    method: str,
    error: type[BaseException],
) -> None:
    if method == "try_complete" and way in ("complete_all", "close", "aclose"):
        method = "on_complete"  # these triggers do not try
    operations: list[Flag] = [Flag(1.0) for _ in range(4)]
    exiting = Exiting(method, error)
    operations.insert(position, exiting)
    for operation in operations:
        purgatory.try_complete_else_watch(operation, ["key"])
    for operation in operations:
        operation.ready = True
    with pytest.raises(error):
        COMPLETE[way](purgatory, clock)
    assert [operation.done() for operation in operations] == [True] * 5
    assert [operation.calls.count("flag completes") for operation in operations if operation is not exiting] == [1] * 4
    assert isinstance(exiting.exception(), error)
    check_over(purgatory, clock)


@pytest.mark.parametrize("error", EXITS)
@pytest.mark.parametrize("way", COMPLETE | CANCEL)
def test_the_request_of_a_listener_is_raised_after_the_others_are_done(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, way: str, error: type[BaseException]
) -> None:
    heard: list[object] = []

    def listen(finished: object) -> None:
        heard.append(finished)
        if len(heard) == 2:
            raise error

    purgatory.add_listener(listen)
    operations = [purgatory.try_complete_else_watch(Flag(1.0), ["key"]) for _ in range(4)]
    for operation in operations:
        operation.ready = True
    with pytest.raises(error):
        (COMPLETE | CANCEL)[way](purgatory, clock)
    assert [operation.done() for operation in operations] == [True] * 4
    assert len(heard) == 4
    check_over(purgatory, clock)


@pytest.mark.parametrize("error", EXITS)
@pytest.mark.parametrize("way", ["advance", "complete_all", "fail_all", "close"])
def test_waits_for_thresholds_end_before_a_request_to_exit_is_raised(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, way: str, error: type[BaseException]
) -> None:
    thresholds = ThresholdPurgatory(0, purgatory)
    heard: list[object] = []

    def listen(finished: object) -> None:
        heard.append(finished)
        if len(heard) == 2:
            raise error

    purgatory.add_listener(listen)
    waits = [thresholds.reach(n // 2, 1.0) for n in range(8)]
    with pytest.raises(error):
        match way:
            case "advance":
                thresholds.advance(10)
            case "complete_all":
                thresholds.complete_all()
            case "fail_all":
                thresholds.fail_all(LookupError())
            case _:
                thresholds.close()
    assert [wait.done() for wait in waits] == [True] * 8
    if way == "fail_all":
        assert [type(wait.exception()) for wait in waits] == [LookupError] * 8
    check_over(purgatory, clock)


@pytest.mark.parametrize("error", EXITS)
def test_keys_of_a_pass_behind_a_request_to_exit_are_checked(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, error: type[BaseException]
) -> None:
    operations = [Exiting("on_complete", error), Flag(1.0), Flag(1.0)]
    for n, operation in enumerate(operations):
        purgatory.try_complete_else_watch(operation, [n])
        operation.ready = True
        purgatory.check_and_complete_soon(n)
    with pytest.raises(error):
        clock.advance(0)
    clock.advance(0)
    assert [operation.done() for operation in operations] == [True] * 3


@pytest.mark.parametrize("error", EXITS)
def test_further_buckets_expire_after_a_request_to_exit(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, error: type[BaseException]
) -> None:
    purgatory.try_complete_else_watch(Exiting("on_complete", error), ["key"])
    later = purgatory.try_complete_else_watch(Flag(1.5), ["key"])
    with pytest.raises(error):
        clock.advance(1.0)
    assert not later.done()
    clock.advance(1.0)
    assert later.expired()


@pytest.mark.parametrize("error", [*EXITS, GeneratorExit])
def test_a_purge_that_an_exit_has_ended_is_begun_anew(error: type[BaseException]) -> None:
    class Key:
        """A key whose `__hash__` raises the errors in `errors`."""

        def __hash__(self) -> int:
            if errors:
                raise errors.pop()
            return 1

    errors: list[type[BaseException]] = []
    clock = VirtualClock()
    purgatory = DelayedOperationPurgatory(purge_interval=10, clock=clock)

    def leave(count: int) -> None:
        for _ in range(count):
            purgatory.try_complete_else_watch(Flag(), [Key()]).cancel()

    leave(100)
    errors.append(error)
    with pytest.raises(error):
        clock.advance(0)
    leave(1)
    clock.advance(0)
    assert purgatory.watched == 0
    assert purgatory.statistics().purges == 2


@pytest.mark.parametrize("error", EXITS)
async def test_keys_of_other_threads_behind_one_that_exits_are_checked(error: type[BaseException]) -> None:
    class Key:
        hashed = 0

        def __hash__(self) -> int:
            self.hashed += 1
            if self.hashed == 2:
                raise error
            return 1

    purgatory = DelayedOperationPurgatory()
    operation = purgatory.try_complete_else_watch(Flag(), ["key"])
    operation.ready = True
    purgatory.check_and_complete_threadsafe(Key())
    purgatory.check_and_complete_threadsafe("key")
    with pytest.raises(error):
        purgatory._queue._take_foreign()
    assert await operation == "result of flag"
    await purgatory.aclose()


@pytest.mark.parametrize("error", EXITS)
def test_an_exit_of_the_exception_handler_is_raised_after_the_other_listeners(error: type[BaseException]) -> None:
    class Handling(FaultLog):
        def call_exception_handler(self, context: dict[str, object]) -> None:
            raise error

    def faulty(finished: FinishedOperation) -> None:
        raise ValueError

    heard: list[str] = []
    purgatory = DelayedOperationPurgatory(clock=Handling())
    purgatory.add_listener(faulty)
    purgatory.add_listener(lambda finished: heard.append(finished.outcome))
    with pytest.raises(error):
        purgatory.try_complete_else_watch(Flag(), ["key"]).cancel()
    with pytest.raises(error):
        purgatory.try_complete_else_watch(Flag(ready=True), ["key"])
    assert heard == ["cancelled", "completed_at_once"]
