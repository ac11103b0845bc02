"""An application of FastAPI with streams in it, for servers in processes of their own: `tests.streams.mounted:app`."""

import asyncio
import gc
import logging
import os
import resource
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from purgatory.uvicorn import ParkingProtocol


def settings() -> dict[str, Any]:
    """What a library could change in a process."""
    return {
        "collector": [gc.isenabled(), *gc.get_threshold(), gc.get_freeze_count()],
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "loggers": [len(logging.root.handlers), logging.root.level],
        "protocol": repr(sorted((name, repr(value)) for name, value in vars(ParkingProtocol).items())),
        "switches": [sys.getswitchinterval(), sys.getrecursionlimit()],
    }


BEFORE = settings()

from purgatory.streams import durable_streams  # noqa: E402

streams = durable_streams(data=os.environ["MOUNTED_DATA"], long_poll_timeout=30.0)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Join that of the streams by one line."""
    async with streams.lifespan(app):
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/streams", streams)


@app.get("/state")
async def state() -> dict[str, Any]:
    """What has become of the process."""
    from purgatory.streams.http.protocol import BoundedProtocol

    return {
        "unchanged": settings() == BEFORE and "write_timeout" not in vars(BoundedProtocol),
        "tasks": len(asyncio.all_tasks()),
        "waiting": streams.streams.reads.num_delayed,
    }
