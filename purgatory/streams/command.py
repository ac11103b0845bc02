"""The command `purgatory serve`."""

import argparse
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from purgatory.streams.http.app import journal
from purgatory.streams.server import bound, serve
from purgatory.streams.settings import CACHES, Settings, check
from purgatory.streams.storage.database import StorageError
from purgatory.streams.storage.opener import FolderOpener, PostgresOpener

if TYPE_CHECKING:
    Subcommands = argparse._SubParsersAction[argparse.ArgumentParser]

_EXPOSED = (
    "ETag, Location, Producer-Epoch, Producer-Expected-Seq, Producer-Received-Seq, Producer-Seq, Stream-Closed,"
    " Stream-Cursor, Stream-Expires-At, Stream-Next-Offset, Stream-SSE-Data-Encoding, Stream-TTL, Stream-Up-To-Date"
)


def add_to(subcommands: "Subcommands") -> None:
    """Add the subcommand."""
    defaults = Settings()
    parser = subcommands.add_parser(
        "serve",
        help="serve Durable Streams: append-only streams over HTTP",
        description="Serve Durable Streams, which are append-only streams over HTTP, with a page that shows the server"
        " at work. Streams are in SQLite, or in PostgreSQL for several processes.",
    )

    def add(name: str, metavar: str, text: str, convert: Callable[[str], Any] = str, to: Any = None) -> None:
        default = getattr(defaults, name)
        if convert is not str and default is not None:
            text += f" (default: {default:,})"
        option, kind = f"--{name.replace('_', '-')}", _setting(name, convert)
        (to or group).add_argument(option, type=kind, default=default, metavar=metavar, help=text)

    group = parser.add_argument_group("address")
    text = "address to listen on; only loopback is safe without a proxy (default: %(default)s)"
    group.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help=text)
    text = "port to listen on; 0 chooses a free one (default: %(default)s)"
    group.add_argument("--port", type=_port, default=4437, metavar="PORT", help=text)
    add(
        "url",
        "URL",
        "public URL, which receivers of webhooks call back; behind a proxy, its URL (default: http://ADDRESS:PORT)",
    )
    count = _setting("max_pending", int)
    text = "number of processes; several need --database (default: 1)"
    group.add_argument("--workers", type=count, default=1, metavar="N", help=text)

    group = parser.add_argument_group("storage")
    where = group.add_mutually_exclusive_group()
    add("data", "DIR", "folder of the SQLite database (default: ./data)", to=where)
    text = "use this PostgreSQL database instead of SQLite: postgresql://user@host/database"
    add("database", "URL", text, to=where)
    text = "read the whole SQLite database before the start, and refuse to start if it is damaged"
    group.add_argument("--check", action="store_true", help=text)

    group = parser.add_argument_group("clients")
    group.add_argument(
        "--allowed-host", dest="allowed_hosts", type=_setting("allowed_hosts", lambda text: (text,)), action="extend",
        default=[], metavar="NAME",
        help="host name of the server, besides localhost and IP addresses; repeat it for more; * allows every name",
    )  # fmt: skip
    text = "origin whose pages may use the server, besides its own; * allows every origin (default: none)"
    add("allowed_origin", "ORIGIN", text)
    text = "caches that may keep data for a minute: all, the client's own, or none (default: private, or public with"
    group.add_argument("--cache", choices=CACHES, help=f"{text} --allowed-origin '*')")
    text = "allow webhooks to this machine by http, for development (default: only https to public addresses)"
    group.add_argument("--local-webhooks", action="store_true", help=text)

    group = parser.add_argument_group("times")
    add("long_poll_timeout", "SECONDS", "longest wait of a long poll", float)
    add("event_stream_timeout", "SECONDS", "longest duration of an event stream", float)
    add("heartbeat", "SECONDS", "interval of an event stream's heartbeats", float)
    text = "time after which a client that takes nothing of its response is disconnected"
    add("write_timeout", "SECONDS", text, float)
    text = "time after which a waiting client's connection takes less memory; inf for never"
    add("cool_after", "SECONDS", text, float)

    group = parser.add_argument_group("limits")
    add("max_body", "BYTES", "largest request body", int)
    add("max_units", "N", "greatest length of a stream, in bytes or JSON messages", int)
    add("max_streams", "N", "greatest number of streams", int)
    add("max_subscriptions", "N", "greatest number of subscriptions", int)
    add("max_pending", "N", "greatest number of waiting reads of one process", int)
    text = "greatest number of waiting reads, and of running requests, of one client address"
    add("max_pending_client", "N", text, int)
    text = "delay the answers to a client address above this many appends per second and process (default: no limit)"
    add("append_rate", "N", text, float)

    group = parser.add_argument_group("observation")
    add("journal", "DIR", "write a journal to this folder: a row for each finished wait, with its duration and outcome")
    text = "name of the server in the journal and in /health; workers append their process ids (default: %(default)s)"
    add("instance", "NAME", text)
    group.add_argument("--demo", action="store_true", help="allow the page to start made-up operations that wait")
    group.add_argument("--access-log", action="store_true", help="log a line for each request")
    parser.set_defaults(run=_run, parser=parser)


def _run(options: argparse.Namespace) -> None:
    if options.workers > 1 and options.database is None:
        options.parser.error("--workers needs a --database, because SQLite is for one process")
    if options.check and options.database is not None:
        options.parser.error("--check is for SQLite: check PostgreSQL with pg_amcheck")
    if options.demo and options.database is not None:
        options.parser.error("--demo is for one process: leave out --database and --workers")
    # A waiting client is an open file: take as many as the system lets us.
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    reserved = None
    if not options.port:
        reserved = bound(options.host, 0)  # the URL of webhooks has to name the port
        options.port = reserved.getsockname()[1]
    if options.url is None:
        host = f"[{options.host}]" if ":" in options.host else options.host
        options.url = f"http://{host}:{options.port}"
    options.url = options.url.rstrip("/")
    options.allowed_hosts = tuple(options.allowed_hosts)
    settings = Settings(**{field.name: getattr(options, field.name) for field in fields(Settings)})
    _check(settings, whole=options.check)
    if reserved is None:
        bound(options.host, options.port).close()  # or it is in use
    _say(f"the data is in {_place(settings)}")
    if not _is_local(options.host):
        _say(
            f"anybody who reaches {options.host} may read, write and delete: this server has no passwords."
            " Put a proxy with passwords in front of it (nginx.conf), or leave out --host"
        )
    headers = []
    if settings.allowed_origin is not None:
        headers = [
            ("Access-Control-Allow-Origin", settings.allowed_origin),
            ("Access-Control-Expose-Headers", _EXPOSED),
        ]
    # uvicorn raises the signal once more when it is done. To be stopped by one is no failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    serve(
        settings,
        options.workers,
        options.host,
        options.port,
        reserved,
        interface="asgi3",
        ws="none",
        loop="uvloop",
        headers=headers,
        server_header=False,
        access_log=options.access_log,
        # A proxy keeps connections for a minute: if the server closes one first, a request may be on its way.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def _place(settings: Settings) -> str:
    """Where the data is, without a password."""
    if settings.database is None:
        return str(Path(settings.data).resolve())
    parts = urlsplit(settings.database)
    return f"PostgreSQL, {parts.path.removeprefix('/') or 'its default database'} on {parts.hostname or 'this machine'}"


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check(settings: Settings, *, whole: bool) -> None:
    """Exit with a message if the database or the journal cannot be used, or with `whole` if the database is damaged."""
    try:
        # Each process has one of its own. Only whether that can be is seen to here.
        if (opened_journal := journal(settings)) is not None:
            opened_journal.close()
    except ModuleNotFoundError as missing:
        sys.exit(f"--journal: {missing}")
    except ValueError as wrong:  # readers would take a number or a date for one
        sys.exit(f"--instance: {wrong}")
    except OSError as failure:
        sys.exit(f"cannot use {failure.filename or settings.journal}: {failure.strerror}")
    try:
        if settings.database is not None:
            PostgresOpener(settings.database).close()
        else:
            opened = FolderOpener(Path(settings.data))
            try:
                with closing(opened.writer()) as database:
                    if whole:
                        _say(f"checking the database in {settings.data} …")
                        database.check()
            finally:
                opened.close()
    except BlockingIOError:
        sys.exit(f"another server uses {settings.data}: name another folder with --data")
    except ModuleNotFoundError as missing:
        sys.exit(f"--database: {missing}")
    except (OSError, StorageError) as failure:
        sys.exit(f"cannot use {(settings.database and 'the database') or settings.data}: {failure}")


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"must be a port from 0 to 65535, not {text}")
    return int(text)


def _setting(name: str, convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """What turns an option's text into a value that the setting of that name may have."""

    def parse(text: str) -> Any:
        try:
            value = convert(text)
        except ValueError:
            what = "an integer" if convert is int else "a number"
            raise argparse.ArgumentTypeError(f"must be {what}, not {text}") from None
        try:
            check(name, value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return value

    return parse
