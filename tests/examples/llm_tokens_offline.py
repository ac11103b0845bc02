"""The example with a copy of the official client, instead of the one that browsers load from elsewhere."""

import os
from pathlib import Path

from fastapi import Request
from fastapi.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route

from examples.llm_tokens import app as example
from examples.llm_tokens.app import app

ELSEWHERE = "https://esm.sh/@durable-streams/client@0.2.7"


async def page(request: Request) -> Response:
    text = (Path(example.__file__).parent / "index.html").read_text()
    assert text.count(ELSEWHERE) == 1
    return HTMLResponse(text.replace(ELSEWHERE, "/client.js"))


async def client(request: Request) -> Response:
    return FileResponse(os.environ["CLIENT"])


app.router.routes[:0] = [Route("/", page), Route("/client.js", client)]
