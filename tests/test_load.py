"""The load of README's table, with fewer clients; real processes, real HTTP."""

import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest
import uvloop

from examples.long_poll_server import measure
from tests.server_process import ROOT

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


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--clients", "10000000"], "10,000,000 clients: a process may open"),
        (["--topics", "0"], "there must be a topic at least"),
        (["--clients", "10"], "a client for each"),
        (["--seconds", "nan"], "more than 0 seconds"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: list[str], error: str) -> None:
    command = [sys.executable, "-m", "examples.long_poll_server.measure", *arguments]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert error in refused.stderr
    assert "Traceback" not in refused.stderr
