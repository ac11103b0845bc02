"""The status of a job: a request waits for its end."""

import httpx
import pytest
from starlette.testclient import TestClient

from examples import job_status
from tests.asgi.processes import serving


@pytest.mark.parametrize("command", ["purgatory.uvicorn", "uvicorn"])
def test_request_that_waits_is_answered_at_the_end_of_the_job(command: str) -> None:
    with serving(command, "--port", "0", "examples.job_status:app") as server:
        job = httpx.post(f"{server.url}/jobs").json()["id"]
        assert httpx.get(f"{server.url}/jobs/{job}").json() == {"state": "running", "result": None}
        answer = httpx.get(f"{server.url}/jobs/{job}", params={"wait": 60}, timeout=60)
        assert answer.json() == {"state": "done", "result": "a report"}


def test_failed_job_is_told_and_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> str:
        raise ValueError("no paper")

    monkeypatch.setattr(job_status, "make_report", fail)
    monkeypatch.setattr(job_status, "KEPT", 0.3)
    with TestClient(job_status.app) as client:
        job = client.post("/jobs").json()["id"]
        answer = client.get(f"/jobs/{job}", params={"wait": 60})
        assert answer.json() == {"state": "failed", "result": "no paper"}
        while client.get(f"/jobs/{job}").status_code != 404:
            pass
        assert client.get(f"/jobs/{job}", params={"wait": 301}).status_code == 422
