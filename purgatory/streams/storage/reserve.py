"""Room that is reserved on the disk, so that streams can be deleted when it is full.

SQLite writes a deletion to its log before it frees anything, and what the log has to its file, which may grow by that.
On a full disk neither is possible, so nothing could be deleted. Hence a file takes room beforehand: as much as the log
may need until it is in the database, and as much again for deletions. When the disk is full, the file is emptied, and
only what frees room is stored, until there is enough to fill it again.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

RESERVED: Final = 16 * 1024 * 1024
"""Bytes of the file."""


class Reserve:
    """The file that takes the room."""

    def __init__(self, path: Path) -> None:
        """Look whether the file has the room."""
        self._path = path
        self._folder = str(path.parent)
        self.is_made = path.exists() and path.stat().st_size == RESERVED

    def free(self) -> int:
        """Return bytes that are free on the disk. A file system that does not say has no bound."""
        disk = os.statvfs(self._folder)
        return disk.f_bavail * disk.f_frsize if disk.f_blocks else sys.maxsize

    def make(self) -> bool:
        """Take the room, if it is not taken. Return whether it is."""
        if not self.is_made:
            try:
                with self._path.open("wb") as file:
                    if hasattr(os, "posix_fallocate"):
                        os.posix_fallocate(file.fileno(), 0, RESERVED)
                    else:  # macOS
                        file.write(bytes(RESERVED))
                self.is_made = True
            except OSError:  # there is less room than it seems, or a quota
                with suppress(OSError):
                    os.truncate(self._path, 0)
        return self.is_made

    def release(self) -> bool:
        """Let the database have the room. Return whether there was some."""
        was_made = self.is_made
        if was_made:
            os.truncate(self._path, 0)
            self.is_made = False
        return was_made
