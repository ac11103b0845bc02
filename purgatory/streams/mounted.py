"""A Durable Streams server as an application to mount."""

import os
from collections.abc import Iterable
from typing import Any, Literal

from purgatory.streams.http.app import Application
from purgatory.streams.settings import Settings


def durable_streams(
    *,
    data: str | os.PathLike[str] = "data",
    database: str | None = None,
    url: str | None = None,
    local_webhooks: bool = False,
    allowed_hosts: Iterable[str] | None = None,
    allowed_origin: str | None = None,
    cache: Literal["public", "private", "no-store"] | None = None,
    long_poll_timeout: float = 30.0,
    event_stream_timeout: float = 60.0,
    heartbeat: float = 15.0,
    max_body: int = 1024 * 1024,
    max_units: int = 2**53 - 1,
    max_streams: int = 1_000_000,
    max_subscriptions: int = 1_000,
    max_pending: int = 100_000,
    max_pending_client: int = 10_000,
    append_rate: float | None = None,
    journal: str | os.PathLike[str] | None = None,
    instance: str | None = None,
) -> Application:
    """Make a Durable Streams server to mount in an application of Starlette or FastAPI.

        streams = durable_streams(data="./data")
        app = FastAPI(lifespan=streams.lifespan)
        app.mount("/streams", streams)

    The URL of a stream is then `/streams/v1/stream/PATH`. Frameworks don't run the lifespan of a mounted application.
    If you have a lifespan of your own, use `async with streams.lifespan(app): yield` in it. Requests that come earlier
    are answered with 503. The application runs on any ASGI server, and doesn't change settings of the process.

    Args:
        data: Folder of the SQLite database, which is for one process. It is created if needed.
        database: URL of a PostgreSQL database to use instead, also by several processes. It needs the extra
            `postgresql`.
        url: Public URL of the mount point, for example `https://www.example.org/streams`. Webhooks get it to call
            back, so without it subscriptions of the type `webhook` are refused.
        local_webhooks: Whether webhooks to this machine are allowed, over http.
        allowed_hosts: Names by which clients may call the server, in addition to localhost and IP addresses. `*` allows
            every name. By default, clients from other machines may use any name. Clients on this machine may not,
            because pages of other sites could reach the server through a browser here, and neither may clients behind
            a proxy, because their origin isn't known.
        allowed_origin: Origin whose pages may use the server, in addition to its own. `*` allows every origin. Your
            application must add the headers that a browser needs for that, for example with `CORSMiddleware`.
        cache: Who may keep data for a minute: every cache (`public`), the client's (`private`) or none (`no-store`).
            By default, it is `private`, or `public` if `allowed_origin` is `*`.
        long_poll_timeout: Longest wait of a long poll, in seconds.
        event_stream_timeout: Longest duration of an event stream, in seconds.
        heartbeat: Interval of an event stream's heartbeats, in seconds.
        max_body: Largest request body, in bytes.
        max_units: Greatest length of a stream, in bytes, or in messages if the stream is JSON.
        max_streams: Greatest number of streams.
        max_subscriptions: Greatest number of subscriptions.
        max_pending: Most waiting reads of this process.
        max_pending_client: Most waiting reads, and most running requests, of one client address.
        append_rate: Appends per second of one client address, above which answers are delayed.
        journal: Folder of the journal of finished reads. It needs the extra `journal`.
        instance: Name of the server in the journal, in `/health` and in the metrics. By default, `streams-HOSTNAME`.

    Returns:
        The application. It may be started again after it has ended.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is out of range or malformed.
    """
    if isinstance(allowed_hosts, str):
        raise TypeError(f"allowed_hosts must be a collection of host names, not the str {allowed_hosts!r}")
    named: dict[str, Any] = {} if instance is None else {"instance": instance}
    settings = Settings(
        data=_path(data),
        database=database,
        url=url.rstrip("/") if isinstance(url, str) else url,
        local_webhooks=local_webhooks,
        allowed_hosts=None if allowed_hosts is None else tuple(allowed_hosts),
        allowed_origin=allowed_origin,
        cache=cache,
        long_poll_timeout=long_poll_timeout,
        event_stream_timeout=event_stream_timeout,
        heartbeat=heartbeat,
        max_body=max_body,
        max_units=max_units,
        max_streams=max_streams,
        max_subscriptions=max_subscriptions,
        max_pending=max_pending,
        max_pending_client=max_pending_client,
        append_rate=append_rate,
        journal=None if journal is None else _path(journal),
        **named,
    )
    return Application(settings)


def _path(folder: str | os.PathLike[str]) -> str:
    return os.fspath(folder) if isinstance(folder, os.PathLike) else folder
