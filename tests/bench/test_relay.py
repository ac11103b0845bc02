"""The scenario `relay`: every broker is measured, and what goes wrong fails it. No test judges a speed."""

from functools import partial
from pathlib import Path

import pytest

from purgatory.bench.case import Case, find
from purgatory.bench.relay import hearing, publisher
from purgatory.bench.relay.hearing import POSTGRES, REDIS, THREADS, missing, serving
from purgatory.relay import Relay
from tests.bench.test_bench import check, results, run
from tests.support.servers import program


def quick(implementation: str) -> Case:
    return next(case for case in find("relay").cases(True) if case.implementation == implementation)


def test_every_broker_is_measured_in_a_quick_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    program("redis-benchmark", "redis-server")
    program("pgbench", "postgresql")
    output = run(tmp_path_factory, ["relay"], "relay")
    check(output, ["relay"])
    cases = results(output)["scenarios"]["relay"]["cases"]
    assert [case["implementation"] for case in cases] == [REDIS, POSTGRES, THREADS]
    for case in cases:
        (figures,) = case["rounds"]
        assert figures["a_core"] == pytest.approx(1e6 / figures["heard_us"])
        assert all(figures[key] > 0 for key in ("heard_us", "woken_us"))
        assert (figures["taken"] > 0) == (case["implementation"] != THREADS)


def test_a_server_that_is_not_installed_is_named_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing(quick(REDIS)) == "needs redis-server, redis-benchmark: sudo apt-get install redis-server"
    assert missing(quick(THREADS)) is None


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_publisher_that_fails_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    program("redis-benchmark", "redis-server")
    monkeypatch.setattr(publisher, "__file__", "nothing.py")
    with pytest.raises(RuntimeError, match="the publisher has failed"):
        await hearing.run(quick(REDIS))


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_message_that_is_lost_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def publish(*_: object) -> None:
        """Publish nothing."""

    monkeypatch.setattr(hearing, "_PATIENCE", 0.1)
    monkeypatch.setattr(publisher, "publish", publish)
    with pytest.raises(RuntimeError, match="of 1 messages only 0 were heard"):
        await hearing.run(quick(THREADS))


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_machine_that_is_too_slow_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "Relay", partial(Relay, max_keys=1))  # all watched keys are checked
    with pytest.raises(RuntimeError, match="this machine is too slow to hear of 1,000 changes a second"):
        await hearing.run(quick(THREADS))


def test_a_server_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "_path", lambda program: "/bin/true")
    with pytest.raises(RuntimeError, match="/bin/true has not started"), serving(REDIS, 1):
        pass
