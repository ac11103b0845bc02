"""Where streams are stored: SQLite in a folder, or PostgreSQL.

A `Database` is used by one thread. Each thread that reads or writes has one of its own.
"""

from purgatory.streams.storage.database import Database, StorageConflict, StorageError, StorageFull, StorageUnavailable

__all__ = ["Database", "StorageConflict", "StorageError", "StorageFull", "StorageUnavailable"]
