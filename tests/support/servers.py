"""Real servers that tests run against, each a process on a free port of loopback with its files in a new directory.

`program` finds an installed program, or skips the test with the command that brings it. The fixtures `redis` and
`postgres` are one server each for all tests of a process: take another channel, another database.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

LOOPBACK = "127.0.0.1"
_FOLDERS = ["/usr/local/sbin", "/usr/sbin", "/sbin"]


def program(name: str, package: str) -> str:
    """The path of an installed program. Without it the test is skipped, or fails where the environment has CI set."""
    # Debian keeps the programs of each release of PostgreSQL apart; the newest comes first.
    releases = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -int(path.parent.name))
    folders = [os.environ.get("PATH", os.defpath), *_FOLDERS, *map(str, releases)]
    path = shutil.which(name, path=os.pathsep.join(folders))
    if path is not None:
        return path
    message = f"needs {name}: sudo apt-get install {package}"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


_RESERVATIONS: list[socket.socket] = []


def reserved_port() -> int:
    """A port for a server that is stopped and started again, or that nothing listens on. No other process gets it.

    The socket that is bound to it never listens, so a server may bind the port too: both have SO_REUSEADDR.
    """
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind((LOOPBACK, 0))
    _RESERVATIONS.append(reservation)
    port: int = reservation.getsockname()[1]
    return port


# The frame of a site in Debian's nginx.conf, with its files elsewhere.
_NGINX = """
daemon off;
worker_processes {workers};
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 768; }}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
"""


@contextmanager
def nginx(folder: Path, site: str, workers: int = 1) -> Iterator["subprocess.Popen[str]"]:
    """An nginx with the configuration `site`, which listens when the first request is answered."""
    (folder / "site.conf").write_text(site)
    (folder / "nginx.conf").write_text(_NGINX.format(folder=folder, workers=workers))
    command = [program("nginx", "nginx"), "-p", str(folder), "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf"]
    # Its workers, which are another user's if it is root's, have to get at its files.
    command += ["-g", "user root;"] if os.geteuid() == 0 else []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)


class RedisServer:
    """A Redis that keeps nothing on disk. `kill` and `restart` as often as you like: the port stays."""

    def __init__(self) -> None:
        self._program = program("redis-server", "redis-server")
        self.port = reserved_port()
        self.url = f"redis://{LOOPBACK}:{self.port}"
        self._process: subprocess.Popen[str] | None = None
        self.restart()

    def kill(self) -> None:
        """`kill -9`."""
        if self._process is not None:
            with self._process as process:
                process.kill()
            self._process = None

    def restart(self) -> None:
        """Start it, and return when it can be used. Harmless while it runs."""
        if self._process is not None:
            return
        command = [self._program, "--port", str(self.port), "--bind", LOOPBACK, "--save", "", "--appendonly", "no"]
        process = subprocess.Popen(command, cwd=tempfile.gettempdir(), stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        output = []
        for line in process.stdout:
            output.append(line)
            if "Ready to accept connections" in line:
                self._process = process
                return
        process.wait()
        raise RuntimeError(f"redis-server did not start: {''.join(output)}")


class PostgresServer:
    """A PostgreSQL that does not wait for its disk. `kill` and `restart` as often as you like: the port stays."""

    def __init__(self, directory: Path) -> None:
        """Make one with its files in `directory`, which is empty."""
        self._pg_ctl = program("pg_ctl", "postgresql")
        self._psql = program("psql", "postgresql")
        self._data = directory / "data"
        self._log = directory / "log"
        # It refuses to run as root.
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(directory, self._user)
        self._numbers = count()
        self.port = reserved_port()
        options = "--auth=trust --username=postgres --encoding=UTF8 --locale=C --no-sync"
        self._run(self._pg_ctl, "init", "-D", str(self._data), "-o", options)
        self.restart()

    def dsn(self, database: str = "postgres") -> str:
        """The DSN of `database` for the superuser."""
        return f"postgresql://postgres@{LOOPBACK}:{self.port}/{quote(database)}"

    def create_database(self) -> str:
        """Create an empty database. Returns its DSN. Channels of NOTIFY are a database's own."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.dsn(name)

    def execute(self, command: str, database: str = "postgres") -> str:
        """Execute a command of SQL from outside. Returns the rows, a line for each."""
        return self._run(self._psql, "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", command, self.dsn(database))

    def _suspend(self) -> list[psutil.Process]:
        """Stop the server, so that it starts no more processes, and return all that it has."""
        server = psutil.Process(int((self._data / "postmaster.pid").read_text().split("\n")[0]))
        server.suspend()
        return [server, *server.children(recursive=True)]

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """All of its processes are stopped while the context lasts: it takes connections, and never answers."""
        processes = self._suspend()
        try:
            for process in processes:
                process.suspend()
            yield
        finally:
            for process in reversed(processes):
                process.resume()

    def kill(self) -> None:
        """`kill -9`, of all of its processes at once, as if the power had failed."""
        with suppress(FileNotFoundError):
            processes = self._suspend()
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            while any(map(_runs, processes)):
                pass
            (self._data / "postmaster.pid").unlink()

    def restart(self) -> None:
        """Start it, and return when it can be used. Harmless while it runs."""
        if (self._data / "postmaster.pid").exists():
            return
        settings = {
            "listen_addresses": LOOPBACK,
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": 200,
            "fsync": "off",
            "synchronous_commit": "off",
        }
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        self._run(self._pg_ctl, "start", "-w", "-t", "60", "-D", str(self._data), "-l", str(self._log), "-o", options)

    def _run(self, *command: str) -> str:
        # The output goes to a file: a started server holds it open as long as it runs.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                command, cwd=self._data.parent, user=self._user, stdout=output, stderr=subprocess.STDOUT, check=False
            )
            output.seek(0)
            text = output.read()
        if done.returncode:
            log = self._log.read_text() if self._log.exists() else ""
            raise RuntimeError(f"{' '.join(command)} failed: {text}{log}")
        return text


def _runs(process: psutil.Process) -> bool:
    # A zombie has closed its files and ports. Its parent reaps it at any time.
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """One Redis for all tests of a process: take a channel of your own, and leave it running."""
    server = RedisServer()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL for all tests of a process: take a database of your own, and leave it running."""
    # Not below pytest's own directory, which the server's user may not enter.
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as directory:
        server = PostgresServer(Path(directory))
        yield server
        server.kill()
