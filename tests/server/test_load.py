"""The loads that README tells of, smaller and shorter; real processes, real HTTP."""

import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest
import uvloop

from examples.long_poll_server import measure, soak
from examples.long_poll_server.load.rude import WAYS
from tests.support.paths import ROOT

CLIENTS = 1000


@pytest.fixture(autouse=True)
def _limit() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_thousand_wait_at_once_and_each_is_answered_once() -> None:
    # That the server has counted exactly so many answers is looked at while measuring.
    measured = uvloop.run(measure.measure(CLIENTS, topics=20, seconds=0.4))
    assert (measured.lost, measured.left) == (0, 0)
    assert len(measured.in_turn) == len(measured.at_once) == CLIENTS
    assert len(measured.one) == len(measured.one_alone) == 20
    assert CLIENTS <= measured.pending <= CLIENTS + 1
    assert measured.scrapes
    assert 0 < measured.connection + measured.request < 100 * 1024
    assert min(measured.one + measured.in_turn + measured.at_once) > 0
    assert dict(measured.rows())["left pending"] == "0"


def test_clients_come_go_and_disappear_and_none_is_lost_and_nothing_is_left() -> None:
    # The soak itself looks at waiting clients, at the messages each follower has read, and at open files at the end.
    soaked = uvloop.run(soak.soak(6.0))
    assert len(soaked.samples) == 3
    assert {sample.waiting for sample in soaked.samples} == {soak.HELD + soak.FOLLOWERS * len(soak.TOPICS)}
    assert soaked.samples[-1].messages > soaked.samples[0].messages > 0
    for what in ("acknowledged", "followed", "visited in vain", "killed", "slow", *(f"left: {way}" for way in WAYS)):
        assert soaked.counts[what] > 0, what
    assert max(soaked.memory) < 300 * 2**20
    assert (soaked.left, soaked.files) == (0, 0)
    assert soaked.scrapes


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--clients", "10000000"], "10,000,000 clients: a process may open"),
        (["--topics", "0"], "there must be a topic at least"),
        (["--clients", "10"], "a client for each"),
        (["--seconds", "nan"], "more than 0 seconds"),
    ],
)
def test_options_that_cannot_be_measured_are_refused(arguments: list[str], error: str) -> None:
    command = [sys.executable, "-m", "examples.long_poll_server.measure", *arguments]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert error in refused.stderr
    assert "Traceback" not in refused.stderr
