"""Opens the database that the settings name."""

import time
from pathlib import Path
from typing import Protocol

from purgatory._extras import missing
from purgatory.streams.settings import Settings
from purgatory.streams.storage.database import Database
from purgatory.streams.storage.sqlite import FileDatabase, Folder, WritingDatabase


class Opener(Protocol):
    """Opens connections to a database."""

    @property
    def shared(self) -> bool:
        """Whether other processes use the database too."""

    def writer(self) -> Database:
        """Return the connection that writes."""

    def reader(self) -> Database:
        """Return a connection that reads."""

    def now(self) -> float:
        """Return seconds since 1970."""

    def close(self) -> None:
        """Release the database for other processes."""


class FolderOpener:
    """SQLite in a folder."""

    shared = False

    def __init__(self, path: Path) -> None:
        """Take the folder. Raises `BlockingIOError` if another process uses it, or another `OSError`."""
        self._folder = Folder(path)

    def writer(self) -> WritingDatabase:
        """Return the connection that writes."""
        return WritingDatabase(self._folder.file)

    def reader(self) -> Database:
        """Return a connection that reads."""
        return FileDatabase(self._folder.file)

    def now(self) -> float:
        """Return seconds since 1970."""
        return time.time()

    def close(self) -> None:
        """Release the folder for other processes."""
        self._folder.close()


class PostgresOpener:
    """A PostgreSQL, which other processes use too."""

    shared = True

    def __init__(self, dsn: str) -> None:
        """Open the database. Raises `ModuleNotFoundError` without the extra, or `StorageError`."""
        try:
            from purgatory.relay.payload import encode
            from purgatory.streams.storage import postgresql
        except ModuleNotFoundError as error:
            raise missing(error, "server", "postgresql") from None

        self._module = postgresql
        self._payloads = encode
        self._dsn = dsn
        postgresql.prepare(dsn)

    def writer(self) -> Database:
        """Return the connection that writes."""
        return self._module.PostgresDatabase(self._dsn, lambda paths: list(self._payloads(paths)))

    def reader(self) -> Database:
        """Return a connection that reads."""
        return self._module.PostgresDatabase(self._dsn)

    def now(self) -> float:
        """Return seconds since 1970."""
        return time.time()

    def close(self) -> None:
        """Do nothing, because nothing is held."""


def opener(settings: Settings) -> Opener:
    """Return the opener for these settings. Raises `OSError` or `StorageError`."""
    return FolderOpener(Path(settings.data)) if settings.database is None else PostgresOpener(settings.database)
