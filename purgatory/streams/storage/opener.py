"""Opens the database that the settings name."""

import fcntl
import os
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from purgatory._extras import missing
from purgatory.streams.settings import Settings
from purgatory.streams.storage.database import Database
from purgatory.streams.storage.sqlite import FileDatabase, WritingDatabase


class Opener(ABC):
    """Opens connections to a database."""

    shared: ClassVar[bool]
    """Whether other processes use the database too."""

    @abstractmethod
    def writer(self) -> Database:
        """Return the connection that writes."""

    @abstractmethod
    def reader(self) -> Database:
        """Return a connection that reads."""

    def now(self) -> float:
        """Return seconds since 1970."""
        return time.time()

    @abstractmethod
    def close(self) -> None:
        """Release the database for other processes."""


class FolderOpener(Opener):
    """SQLite in a folder, which is locked against other processes."""

    shared = False

    def __init__(self, path: Path) -> None:
        """Take the folder. Raises `BlockingIOError` if another process uses it, or another `OSError`."""
        path.mkdir(parents=True, exist_ok=True)
        self._file = path / "streams.sqlite"
        self._locks: list[int] = []
        try:
            # The folder itself too: the file may be removed, and a second server would then make and lock another one.
            for locked, flags in ((path / "lock", os.O_WRONLY | os.O_CREAT), (path, os.O_RDONLY)):
                self._locks.append(os.open(locked, flags, 0o644))
                fcntl.flock(self._locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            # Two applications of one process too, as each has opened the file.
            text = f"another server uses the folder, or it cannot be locked ({error.strerror}): name another one"
            raise OSError(error.errno, text, str(path)) from None  # whose class the number chooses

    def writer(self) -> WritingDatabase:
        return WritingDatabase(self._file)

    def reader(self) -> Database:
        return FileDatabase(self._file)

    def close(self) -> None:
        while self._locks:
            os.close(self._locks.pop())


class PostgresOpener(Opener):
    """A PostgreSQL, which other processes use too."""

    shared = True

    def __init__(self, dsn: str) -> None:
        """Open the database. Raises `ModuleNotFoundError` without the extra, or `StorageError`."""
        try:
            from purgatory.streams.storage import postgresql
        except ModuleNotFoundError as error:
            raise missing(error, "server", "postgresql") from None

        self._module = postgresql
        self._dsn = dsn
        postgresql.prepare(dsn)

    def writer(self) -> Database:
        return self._module.PostgresDatabase(self._dsn, writes=True)

    def reader(self) -> Database:
        return self._module.PostgresDatabase(self._dsn)

    def close(self) -> None:
        """Do nothing, because nothing is held."""


def opener(settings: Settings) -> Opener:
    """Return the opener for these settings. Raises `OSError` or `StorageError`."""
    return FolderOpener(Path(settings.data)) if settings.database is None else PostgresOpener(settings.database)
