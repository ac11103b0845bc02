"""The settings of a server."""

import socket
from dataclasses import dataclass, field

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a server. An instance can be pickled, for worker processes."""

    data: str = "data"
    """Folder of the SQLite database."""
    database: str | None = None
    """URL of a PostgreSQL database to use instead of SQLite."""
    url: str = "http://localhost:4437"
    """Public URL of the server, for webhooks and their workers."""
    local_webhooks: bool = True
    """Whether webhooks to this machine are allowed, over http, as in development."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names of the server, beside localhost and IP addresses; `*` allows every name."""
    allowed_origin: str | None = None
    """Origin whose pages may use the server; `*` allows every origin."""
    long_poll_timeout: float = 30.0
    """Longest wait of a long poll, in seconds."""
    event_stream_timeout: float = 60.0
    """Longest duration of an event stream, in seconds. Caches can share a stream that ends."""
    heartbeat: float = 15.0
    """Interval of an event stream's heartbeats, in seconds."""
    max_body: int = 16 * 1024 * 1024
    """Largest request body, in bytes."""
    max_units: int = 2**53 - 1
    """Greatest length of a stream, in bytes, or in messages if the stream is JSON."""
    max_streams: int = 1_000_000
    """Greatest number of streams."""
    max_subscriptions: int = 1_000
    """Greatest number of subscriptions."""
    max_pending: int = 100_000
    """Most waiting reads of one process. Delayed answers to appends have the same limit."""
    max_pending_client: int = 10_000
    """Most waiting reads, and most running requests, of one client address in one process."""
    append_rate: float | None = None
    """Appends per second of one client address, above which answers are delayed; `None` is no limit."""
    write_timeout: float = 30.0
    """Time after which a client that takes none of its response is disconnected, in seconds."""
    journal: str | None = None
    """Folder of the journal of finished reads and delayed answers; `None` is no journal."""
    instance: str = field(default_factory=lambda: f"streams-{socket.gethostname()}")
    """Name of the server in the journal, in `/health` and in the metrics."""
    demo: bool = False
    """Whether the page may start demo traffic, which needs a single process."""
