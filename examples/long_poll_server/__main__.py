"""Run the long-poll server."""

import argparse
import asyncio
import re
import resource
import signal
import sqlite3
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

try:
    import uvicorn

    from examples.long_poll_server import collector, workers
    from examples.long_poll_server.app import LongPollServer
    from examples.long_poll_server.guard import HEADERS
    from examples.long_poll_server.protocol import BoundedProtocol
    from examples.long_poll_server.settings import Settings
    from examples.long_poll_server.store import StoreUnavailable
    from examples.long_poll_server.write_timeout import Server
except ModuleNotFoundError as error:
    sys.exit(f"{error}: pip install 'asyncio-purgatory[server]'")

if TYPE_CHECKING:
    from purgatory.journal import Journal

DSN = "postgresql://user@host:5432/database"


def main(arguments: list[str] | None = None, server: type[LongPollServer] = LongPollServer) -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.workers > 1 and options.database is None:
        parser.error("--workers needs a --database: SQLite is for one process")
    if options.workers > 1 and options.demo:
        parser.error("--demo is for one process: the worker that starts it may not be the worker that shows it")
    # A waiting client is an open file: take as many as the system lets us.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    settings = Settings(**{field.name: getattr(options, field.name) for field in fields(Settings)})
    # uvicorn raises the signal once more when it is done. To have been stopped by one is no failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    if settings.database is not None:
        _prepare(settings.database)
    uvicorns = {
        "host": options.host,
        "port": options.port,
        "interface": "asgi3",
        "loop": "uvloop",
        "http": BoundedProtocol,
        "ws": "none",
        "headers": HEADERS,
        "server_header": False,
        "access_log": False,
        # nginx keeps connections for a minute: if the server closes one first, a request may be on its way.
        "timeout_keep_alive": 75,
        "timeout_graceful_shutdown": 1,
    }
    if options.workers > 1:
        # Each has one of its own. Only whether that can be is seen to here.
        if (journal := _journal(settings)) is not None:
            journal.close()
        workers.serve(settings, options.workers, **uvicorns)
    else:
        opened = _open(server, settings).app
        collector.tune()
        app = opened if settings.database is None else workers.Named(opened, settings.instance)
        Server(uvicorn.Config(app, **uvicorns), settings.write_timeout).run()


def _open(server: type[LongPollServer], settings: Settings) -> LongPollServer:
    try:
        return server(settings, _journal(settings))
    except BlockingIOError:
        sys.exit(f"another server uses {settings.data}: name another directory with --data")
    except OSError as error:
        sys.exit(f"cannot use {error.filename or settings.data}: {error.strerror}")
    except sqlite3.Error as error:
        sys.exit(f"cannot use the database in {settings.data}: {error}")


def _prepare(dsn: str) -> None:
    """See to the tables. Neither what is said here nor what asyncpg says of other errors has the password in it."""
    try:
        from examples.long_poll_server.postgres import prepare
    except ModuleNotFoundError as error:
        sys.exit(f"--database: {error}")
    try:
        asyncio.run(prepare(dsn))
    except ValueError:
        sys.exit(f"--database must be like {DSN}, with what is special in a URL written as %XX")
    except StoreUnavailable as error:
        sys.exit(f"cannot use the database: {error}")


def _parser() -> argparse.ArgumentParser:
    defaults = Settings()
    parser = argparse.ArgumentParser("long_poll_server", description="A durable topic log over HTTP.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=_port, default=8000, help="0 takes a free one (default: 8000)")
    messages = parser.add_mutually_exclusive_group()
    messages.add_argument(
        "--data", type=Path, default=Path("data"), metavar="DIR", help="of the messages (default: %(default)s)"
    )
    messages.add_argument("--database", type=_dsn, metavar="URL", help=f"of the messages instead: {DSN}")
    parser.add_argument(
        "--workers", type=_count, default=1, metavar="N", help="processes that serve, with a --database (default: 1)"
    )
    for option, metavar, text in (
        ("--max-wait", "SECONDS", "that a request waits, at the most"),
        ("--max-pending", "N", "fetches, and produces, that may wait"),
        ("--max-pending-client", "N", "those of one address"),
        ("--max-topics", "N", "topics that there may be"),
        ("--max-messages", "N", "messages that a topic may have"),
    ):
        default = getattr(defaults, option[2:].replace("-", "_"))
        kind = _timeout if isinstance(default, float) else _count
        parser.add_argument(option, type=kind, default=default, metavar=metavar, help=f"{text} (default: {default:,})")
    parser.add_argument(
        "--allowed-host",
        dest="allowed_hosts",
        action="append",
        default=[],
        metavar="NAME",
        help="by which clients know this server, beside localhost and addresses; once for each; * is any",
    )
    parser.add_argument(
        "--publish-rate",
        type=_rate,
        metavar="N",
        help="messages a second of each client: the answers to more are delayed (default: no limit)",
    )
    parser.add_argument(
        "--write-timeout",
        type=_timeout,
        default=defaults.write_timeout,
        metavar="SECONDS",
        help="hang up on a client that takes nothing of its answer for so long (default: %(default)g)",
    )
    parser.add_argument(
        "--journal", type=Path, metavar="DIR", help="write down there what waited, for how long, and why"
    )
    parser.add_argument(
        "--instance",
        type=_instance,
        default=defaults.instance,
        metavar="NAME",
        help="this server's in the journal and, with a --database, in its answers (default: %(default)s)",
    )
    parser.add_argument("--demo", action="store_true", help="let the page ask for demo traffic (default: not)")
    return parser


def _journal(settings: Settings) -> "Journal | None":
    try:
        return settings.open_journal()
    except ModuleNotFoundError as error:
        sys.exit(f"--journal: {error}")
    except OSError as error:
        sys.exit(f"cannot use {error.filename}: {error.strerror}")


def _dsn(text: str) -> str:
    if not text.startswith(("postgresql://", "postgres://")):
        raise argparse.ArgumentTypeError(f"must be like {DSN}")
    return text


def _instance(text: str) -> str:
    # As in the journal, but with room for the process ids of workers.
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", text) or text in {".", ".."}:
        raise argparse.ArgumentTypeError("an instance is named by 1 to 100 of A-Z a-z 0-9 . _ - and not . or ..")
    return text


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535, not {text}")
    return port


def _rate(text: str) -> float:
    rate = float(text)
    if not 0 < rate < float("inf"):
        raise argparse.ArgumentTypeError(f"must be more than 0 and finite, not {text}")
    return rate


def _timeout(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"must be more than 0 and at most 3600 seconds, not {text}")
    return seconds


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return count


if __name__ == "__main__":
    main()
