"""The same request that waits, in several frameworks and behind several middlewares: `/MIDDLEWARE/wait`.

The environment's `FRAMEWORK` chooses. `/returned` returns the response, which three of them can't send. `/state` tells
how many requests were parked in this process, and how many operations are pending.
"""

import gc
import json
import os
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry
from prometheus_fastapi_instrumentator.middleware import PrometheusInstrumentatorMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware

from purgatory import DelayedOperationPurgatory
from purgatory.asgi import DelayedInScope, DelayedResponse, parking_statistics

purgatory = DelayedOperationPurgatory()
hooks: list[str] = []
"""What the frameworks have called after a handler."""
SECRET = "a secret of the test"


def delayed(timeout: float = 0.2) -> DelayedResponse[bool]:
    """Wait for the timeout, because nothing happens."""
    answer = SimpleNamespace(status_code=200, raw_headers=[(b"content-type", b"text/plain")], body=b"waited")
    return DelayedResponse(purgatory.wait_for(lambda: False, "key", timeout=timeout), lambda _: answer)


def measures(app: Any) -> Any:
    return PrometheusInstrumentatorMiddleware(app, registry=CollectorRegistry())


AROUND: dict[str, Callable[[Any], Any]] = {
    "plain": lambda app: app,
    "cors": partial(CORSMiddleware, allow_origins=["*"]),
    "gzip": partial(GZipMiddleware, minimum_size=1),
    "session": lambda app: app,
    "tracing": partial(OpenTelemetryMiddleware, tracer_provider=TracerProvider()),
    "metrics": measures,
}


def starlette(name: str, kind: Any) -> Any:
    from starlette.middleware import Middleware
    from starlette.middleware.sessions import SessionMiddleware
    from starlette.requests import Request

    async def wait(request: Request) -> Any:
        if name == "session":
            request.session["seen"] = "1"
        return delayed()

    app = kind()
    app.add_route("/wait", wait)
    around: Any = AROUND[name]
    if name == "session":
        app.add_middleware(SessionMiddleware, secret_key=SECRET)
    elif name != "plain":
        app.user_middleware.insert(0, Middleware(around))
    return app


def litestar(name: str) -> Any:
    from litestar import Litestar, Request, asgi, get
    from litestar.config.cors import CORSConfig
    from litestar.middleware.session.server_side import ServerSideSessionConfig

    @get("/wait")
    async def wait(request: Request[Any, Any, Any]) -> None:
        if name == "session":
            request.set_session({"seen": "1"})
        request.scope["delayed"] = delayed()  # type: ignore[typeddict-unknown-key]

    @get("/returned")
    async def returned() -> Any:
        return delayed(60.0)

    @asgi("/mounted")
    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        await delayed()(scope, receive, send)

    async def after(response: Any) -> Any:
        hooks.append("after")
        return response

    options: dict[str, Any] = {"after_request": after}
    if name == "session":
        options["middleware"] = [ServerSideSessionConfig().middleware]
    if name == "cors":
        options["cors_config"] = CORSConfig(allow_origins=["*"])
    app = DelayedInScope(Litestar([wait, returned, mounted], **options))
    return app if name == "cors" else AROUND[name](app)


def django_middleware(get_response: Any) -> Any:
    async def call(request: Any) -> Any:
        response = await get_response(request)
        hooks.append("after")
        return response

    return call


django_middleware.sync_capable = False  # type: ignore[attr-defined]
django_middleware.async_capable = True  # type: ignore[attr-defined]


def django(name: str) -> Any:
    import django
    from django.conf import settings
    from django.core.asgi import get_asgi_application
    from django.http import HttpRequest, HttpResponse
    from django.urls import path

    async def wait(request: HttpRequest) -> HttpResponse:
        request_: Any = request
        if request_.scope["middleware"] == "session":
            await request_.session.aset("seen", "1")
        request_.scope["delayed"] = delayed()
        return HttpResponse()

    async def returned(request: HttpRequest) -> Any:
        return delayed(60.0)

    async def awaits(request: HttpRequest) -> HttpResponse:
        await purgatory.wait_for(lambda: False, "key", timeout=60.0)
        return HttpResponse()

    if not settings.configured:
        settings.configure(
            SECRET_KEY=SECRET,
            ALLOWED_HOSTS=["*"],
            MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware", f"{__name__}.django_middleware"],
            SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
            ROOT_URLCONF=(path("wait", wait), path("returned", returned), path("awaits", awaits)),
        )
        django.setup()
    return AROUND[name](DelayedInScope(get_asgi_application()))


def quart(name: str) -> Any:
    from quart import Quart, request, session

    app = Quart(__name__)
    app.secret_key = SECRET

    @app.get("/wait")
    async def wait() -> str:
        if name == "session":
            session["seen"] = "1"
        scope: Any = request.scope
        scope["delayed"] = delayed()
        return ""

    @app.get("/returned")
    async def returned() -> Any:
        return delayed(60.0)

    @app.get("/awaits")
    async def awaits() -> str:
        await purgatory.wait_for(lambda: False, "key", timeout=60.0)
        return ""

    @app.after_request
    async def after(response: Any) -> Any:
        hooks.append("after")
        return response

    return AROUND[name](DelayedInScope(app))


def made(name: str) -> Any:
    framework = os.environ["FRAMEWORK"]
    if framework == "FastAPI":
        from fastapi import FastAPI

        return starlette(name, FastAPI)
    if framework == "Starlette":
        from starlette.applications import Starlette

        return starlette(name, Starlette)
    return {"Litestar": litestar, "Django": django, "Quart": quart}[framework](name)


apps = {name: made(name) for name in AROUND}


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        raise NotImplementedError
    name, _, rest = scope["path"].strip("/").partition("/")
    if name == "state":
        gc.collect()  # an exception of Django's is in a cycle
        state = {"parked": parking_statistics().parked, "pending": purgatory.num_delayed, "hooks": len(hooks)}
        body = json.dumps(state).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})
        return
    scope.update(path=f"/{rest}", raw_path=f"/{rest}".encode(), middleware=name)
    await apps[name](scope, receive, send)
