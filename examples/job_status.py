"""A job takes minutes, and its client must not ask every second whether it is done.

`POST /jobs` starts one. `GET /jobs/ID?wait=30` answers when the job has ended, or after 30 seconds.
A client that waits takes no task. This needs `pip install fastapi` and the extra `server`.

    python -m purgatory.uvicorn examples.job_status:app
    curl -X POST http://127.0.0.1:8000/jobs                 # {"id":"6f1a…"}
    curl 'http://127.0.0.1:8000/jobs/6f1a…?wait=30'         # {"state":"done","result":"a report"}
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, TypedDict
from uuid import uuid4

from fastapi import BackgroundTasks, FastAPI, HTTPException, Query, Request
from fastapi.responses import JSONResponse, Response

from purgatory import DelayedOperationPurgatory, PurgatoryClosed, PurgatoryFull, VersionedValues
from purgatory.asgi import DelayedResponse, closing_on_shutdown

MAX_PENDING = 100_000  # requests that wait
KEPT = 3600.0  # seconds for which the state of a job is kept after its end


class Job(TypedDict):
    state: str
    result: str | None


class State(TypedDict):
    jobs: VersionedValues[str, Job]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[State]:
    jobs = VersionedValues[str, Job](purgatory=DelayedOperationPurgatory("jobs", max_pending=MAX_PENDING))
    async with closing_on_shutdown(jobs):  # answers the waiting requests when shutdown begins
        yield {"jobs": jobs}


app = FastAPI(lifespan=lifespan)


async def make_report() -> str:
    """Take a while: do your work here."""
    await asyncio.sleep(2.0)
    return "a report"


async def run(jobs: VersionedValues[str, Job], job: str) -> None:
    """Run a job. Each `set` answers the requests that wait for it."""
    try:
        jobs.set(job, {"state": "done", "result": await make_report()})
    except Exception as error:
        jobs.set(job, {"state": "failed", "result": str(error)})
    jobs.purgatory.timer.call_later(KEPT, jobs.delete, job)


@app.post("/jobs", status_code=202)
async def start(request: Request, tasks: BackgroundTasks) -> dict[str, str]:
    job = uuid4().hex
    request.state.jobs.set(job, {"state": "running", "result": None})
    tasks.add_task(run, request.state.jobs, job)
    return {"id": job}


@app.get("/jobs/{job}")
async def status(
    request: Request, job: str, wait: Annotated[float, Query(ge=0, le=300)] = 0.0
) -> DelayedResponse[tuple[int, Job] | None]:
    jobs: VersionedValues[str, Job] = request.state.jobs
    if jobs.get(job) == (0, None):
        raise HTTPException(404, "there is no such job")
    ended = jobs.until(job, lambda now: now["state"] != "running", timeout=wait)
    return DelayedResponse(ended, lambda _: JSONResponse(jobs.get(job)[1]))


@app.exception_handler(PurgatoryFull)
@app.exception_handler(PurgatoryClosed)
async def unavailable(request: Request, error: Exception) -> Response:
    text = "too many requests wait, or the server is shutting down"
    return JSONResponse({"detail": text}, 503, {"Retry-After": "1"})
