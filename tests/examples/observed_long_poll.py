"""The long poll, with its statistics at `/statistics` and, at choice, with smaller purgatories."""

import os
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from examples import long_poll


async def statistics(request: Request) -> Response:
    log = request.state.log
    return JSONResponse({each.name: asdict(each.statistics()) for each in (log.fetches, log.produces)})


long_poll.MAX_PENDING = int(os.environ.get("MAX_PENDING", long_poll.MAX_PENDING))
app = long_poll.app
app.routes.append(Route("/statistics", statistics))
