"""The durable log, with its statistics at `/statistics` and, at choice, with smaller purgatories."""

import os
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from examples import durable_log


async def statistics(request: Request) -> Response:
    log = request.state.log
    return JSONResponse({each.name: asdict(each.statistics()) for each in (log.fetches, log.produces)})


durable_log.MAX_PENDING = int(os.environ.get("MAX_PENDING", durable_log.MAX_PENDING))
app = durable_log.app
app.routes.append(Route("/statistics", statistics))
