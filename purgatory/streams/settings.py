"""The settings of a server, and what each of them may be."""

import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Final

CACHES: Final = ("public", "private", "no-store")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a server. An instance can be pickled, for worker processes.

    Raises `TypeError` or `ValueError` for a value that cannot be, and names it.
    """

    data: str = "data"
    """Folder of the SQLite database."""
    database: str | None = None
    """URL of a PostgreSQL database to use instead of SQLite."""
    url: str | None = None
    """Public URL of the server, for webhooks and their workers; `None` refuses webhooks."""
    local_webhooks: bool = False
    """Whether webhooks to this machine are allowed, over http, as in development."""
    allowed_hosts: tuple[str, ...] | None = ()
    """Host names of the server, besides localhost and IP addresses; `*` allows every name.

    With `None`, only clients on this machine, or behind a proxy, must use one of these names.
    """
    allowed_origin: str | None = None
    """Origin whose pages may use the server; `*` allows every origin."""
    cache: str | None = None
    """Who may keep data for a minute: `public` is every cache, `private` the client's own, `no-store` none.

    With `None`, it is `public` if `allowed_origin` is `*`, so that the server is open to all, and `private` otherwise.
    """
    long_poll_timeout: float = 30.0
    """Longest wait of a long poll, in seconds."""
    event_stream_timeout: float = 60.0
    """Longest duration of an event stream, in seconds. Caches can share a stream that ends."""
    heartbeat: float = 15.0
    """Interval of an event stream's heartbeats, in seconds."""
    max_body: int = 1024 * 1024
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
    cool_after: float = 3.0
    """Time after which the connection of a client that waits takes less memory, in seconds; infinity is never."""
    journal: str | None = None
    """Folder of the journal of finished reads and delayed answers; `None` is no journal."""
    instance: str = field(default_factory=lambda: f"streams-{socket.gethostname()}")
    """Name of the server in the journal, in `/health` and in the metrics."""
    demo: bool = False
    """Whether the page may start demo traffic, which needs a single process."""

    @property
    def caching(self) -> str:
        """`Cache-Control` of data."""
        cache = self.cache or ("public" if self.allowed_origin == "*" else "private")
        return cache if cache == "no-store" else f"{cache}, max-age=60"

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None and (each.default is None or each.name == "allowed_hosts"):
                continue
            try:
                check(each.name, value)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{each.name} {error}") from None


def check(name: str, value: Any) -> None:
    """Raise `TypeError` or `ValueError` unless the setting of that name may have the value.

    The text of the error follows the name of the argument, or of the option.
    """
    _CHECKS[name](value)


def _check_cache(value: str) -> None:
    _check_type(value, str, "a str")
    if value not in CACHES:
        raise ValueError(f"must be one of {', '.join(CACHES)}, not {value!r}")


def _check_database(value: str) -> None:
    _check_type(value, str, "a str")
    # The error has not the URL, which may have a password.
    if not value.startswith(("postgresql://", "postgres://")):
        raise ValueError("must be like postgresql://user@host/database")


def _check_hosts(value: tuple[str, ...]) -> None:
    _check_type(value, tuple, "a collection of host names")
    for each in value:
        _check_host(each)


def _check_folder(value: str) -> None:
    _check_type(value, str, "a path")
    if not value or "\0" in value:
        raise ValueError(f"must be the path of a folder, not {value!r}")


def _check_type(value: object, expected: type | tuple[type, ...], described: str) -> None:
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        raise TypeError(f"must be {described}, not {value!r}")


def _text(pattern: str, described: str) -> Callable[[str], None]:
    """Return the check of a text that has to match the pattern."""

    def check_text(value: str) -> None:
        _check_type(value, str, "a str")
        if not re.fullmatch(pattern, value):
            raise ValueError(f"must be {described}, not {value}")

    return check_text


def _number(
    expected: type | tuple[type, ...], described: str, is_within: Callable[[float], bool], bounds: str
) -> Callable[[float], None]:
    """Return the check of a number that has to be within its bounds."""

    def check_number(value: float) -> None:
        _check_type(value, expected, described)
        if not is_within(value):
            raise ValueError(f"must be {bounds}, not {value}")

    return check_number


_FLOAT: Final = (int, float)
_check_host = _text(r"\*|[A-Za-z0-9_.-]+", "a host name without scheme and port, or *")
_check_count = _number(int, "an int", lambda value: 0 < value < 2**53, "at least 1 and less than 2**53")
_check_seconds = _number(
    _FLOAT, "a number of seconds", lambda value: 0 < value <= 3600, "more than 0 and at most 3600 seconds"
)
_CHECKS: Final[Mapping[str, Callable[[Any], None]]] = {
    "data": _check_folder,
    "cache": _check_cache,
    "database": _check_database,
    "url": _text(r"https?://[^\s/?#@]+(/[^\s?#]*)?", "like https://streams.example.org"),
    "allowed_hosts": _check_hosts,
    "allowed_origin": _text(r"\*|https?://[^\s/?#@]+", "like https://page.example.org, or *"),
    "append_rate": _number(_FLOAT, "a number", lambda value: 0 < value < float("inf"), "more than 0 and finite"),
    "cool_after": _number(
        _FLOAT, "a number of seconds", lambda value: value >= 0, "at least 0 seconds, or inf for never"
    ),
    "journal": _check_folder,
    # As in the journal, but with room for the process ids of workers.
    "instance": _text(r"(?!\.\.?$)[A-Za-z0-9._-]{1,100}", "1 to 100 of A-Z a-z 0-9 . _ -, and neither . nor .."),
    **dict.fromkeys(("local_webhooks", "demo"), partial(_check_type, expected=bool, described="True or False")),
    **dict.fromkeys(("long_poll_timeout", "event_stream_timeout", "heartbeat", "write_timeout"), _check_seconds),
    **dict.fromkeys(("max_body", "max_units", "max_streams", "max_subscriptions"), _check_count),
    **dict.fromkeys(("max_pending", "max_pending_client"), _check_count),
}
