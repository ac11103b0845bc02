"""The follower of a stream, beside a server that restarts."""

import subprocess
import sys
from pathlib import Path

import httpx

from tests.streams.processes import TEXT, running
from tests.support.paths import ROOT
from tests.support.servers import reserved_port


def test_follower_goes_on_over_a_restart_and_ends_with_the_stream(tmp_path: Path) -> None:
    port = str(reserved_port())
    url = f"http://127.0.0.1:{port}/v1/stream/news"
    command = [sys.executable, "-m", "examples.follow_stream", url]
    with running(tmp_path, "--port", port):
        httpx.put(url, headers=TEXT).raise_for_status()
        follower = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert follower.stdout is not None
        for text in ("first", "second"):
            httpx.post(url, headers=TEXT, content=text).raise_for_status()
            assert follower.stdout.readline() == f"{text}\n"
    with running(tmp_path, "--port", port):
        httpx.post(url, headers={**TEXT, "Stream-Closed": "true"}, content="last").raise_for_status()
        assert follower.communicate(timeout=60)[0] == "last\n"
    assert follower.returncode == 0


def test_follower_of_a_stream_that_is_not_there_says_so(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        command = [sys.executable, "-m", "examples.follow_stream", f"{server.url}/v1/stream/none"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "404" in done.stderr
