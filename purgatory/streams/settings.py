"""The settings of a server."""

import socket
from dataclasses import dataclass, field

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a server. Times are in seconds, sizes in bytes. They can be pickled, for other processes."""

    data: str = "data"
    """The folder of the database."""
    database: str | None = None
    """The address of a PostgreSQL to use instead."""
    url: str = "http://localhost:4437"
    """The address by which webhooks and their workers know the server."""
    local_webhooks: bool = True
    """Whether webhooks may be on this machine, by http, as in development."""
    allowed_hosts: tuple[str, ...] = ()
    """Names by which clients know the server, beside localhost and addresses."""
    allowed_origin: str | None = None
    """Pages of this origin may use the server; with `*`, those of every origin."""
    long_poll_timeout: float = 30.0
    """A long poll waits so long."""
    event_stream_timeout: float = 60.0
    """A stream of events is ended after that, so that caches can share it."""
    heartbeat: float = 15.0
    """A stream of events without data sends something so often."""
    max_body: int = 16 * 1024 * 1024
    """Of a request."""
    max_units: int = 2**53 - 1
    """Bytes, or messages of JSON, that a stream may have."""
    max_streams: int = 1_000_000
    max_subscriptions: int = 1_000
    max_pending: int = 100_000
    """Reads that wait."""
    max_pending_client: int = 10_000
    """Reads of an address that wait, and requests of it that are in progress."""
    append_rate: float | None = None
    """Appends a second of an address. The answers to more are delayed."""
    write_timeout: float = 30.0
    """A client that takes nothing of its response for so long is disconnected."""
    journal: str | None = None
    """The folder to which finished reads are written."""
    instance: str = field(default_factory=lambda: f"streams-{socket.gethostname()}")
    """The name of the server, in the journal and in its responses if there are several processes."""
    demo: bool = False
    """Whether the page may ask for demo traffic. It needs one process."""
