"""The quorum writes of the other example, in virtual time: no test waits."""

from examples.quorum_writes.replication import DelayedWrite, Log
from purgatory import DelayedOperationPurgatory, VirtualClock


def test_a_write_completes_with_its_quorum() -> None:
    clock = VirtualClock()
    purgatory = DelayedOperationPurgatory(clock=clock)
    log = Log(records=[b"first"])
    write = purgatory.try_complete_else_watch(DelayedWrite(log, 0, quorum=2, timeout=5.0), ["log"])
    log.ends["a"] = 1
    assert purgatory.check_and_complete("log") == 0
    log.ends["b"] = 1
    assert purgatory.check_and_complete("log") == 1
    assert write.result()
    assert write.outcome == "satisfied"


def test_a_write_expires_without_its_quorum() -> None:
    clock = VirtualClock()
    purgatory = DelayedOperationPurgatory(clock=clock)
    write = purgatory.try_complete_else_watch(DelayedWrite(Log(records=[b"first"]), 0, quorum=2, timeout=5.0), ["log"])
    clock.advance(4.999)
    assert not write.done()
    clock.advance(0.001)
    assert not write.result()
    assert write.outcome == "expired"


def test_a_forgotten_check_is_counted() -> None:
    clock = VirtualClock()
    purgatory = DelayedOperationPurgatory(clock=clock)
    log = Log(records=[b"first"])
    purgatory.try_complete_else_watch(DelayedWrite(log, 0, quorum=1, timeout=5.0), ["log"])
    log.ends["a"] = 1  # and no check_and_complete("log")
    clock.advance(5.0)
    assert purgatory.statistics().missed == 1
