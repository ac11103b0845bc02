"""What a process remembers of streams: how they were committed last, and their recent appends."""

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from purgatory.streams.core import messages
from purgatory.streams.core.state import Part, Row, Stream
from purgatory.streams.engine.chunk import Chunk
from purgatory.streams.storage.database import PARTS

__all__ = ["CHUNK", "Cache", "Known"]

CHUNK: Final = 1024 * 1024
"""Bytes from which on a chunk gets no further append."""
_RECENT: Final = 64 * 1024 * 1024
"""Bytes of recent appends that are kept in memory, of all streams."""
_ROW: Final = 200
"""Bytes of an append in memory, beside its data."""
_KNOWN: Final = 10_000
"""Streams that are kept in memory."""


@dataclass(slots=True)
class Known:
    """A stream as it was committed, and its last appends."""

    stream: Stream
    recent: deque[Row] = field(default_factory=deque)
    size: int = 0
    """Bytes of `recent`."""
    touching: bool = False
    gone: bool = False
    """Whether it is deleted, and kept for no forks."""
    chunk: Chunk | None = None
    """The last one that was made: many readers are at the same position."""

    def drop_recent(self) -> int:
        """Forget the appends, and return how many bytes they had."""
        size, self.size = self.size, 0
        self.recent.clear()
        self.chunk = None
        return size

    def recent_chunk(self, position: int) -> Chunk | None:
        """The data behind `position`, if that is in memory."""
        stream = self.stream
        chunk = self.chunk
        if chunk is not None and chunk.begin == position and chunk.stream is stream:
            return chunk
        rows = self.recent
        if not rows or position < rows[0].begin:
            return None
        parts: list[Part] = []
        size = 0
        for row in reversed(rows):
            if row.end <= position:
                break
            parts.append(Part(max(row.begin, position), row.end, row))
        parts.reverse()
        if stream.media_type == messages.JSON and parts[0].begin > parts[0].row.begin:
            return None  # to split so many messages takes too long for the loop
        for count, part in enumerate(parts, 1):
            size += len(part.row.data)
            if size >= CHUNK or count == PARTS:
                del parts[count:]
                break
        chunk = self.chunk = Chunk(stream, position, parts[-1].end, parts)
        return chunk


class Cache:
    """The streams that were used last, by path."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._size = 0

    def __contains__(self, path: str) -> bool:
        return path in self._known

    def __len__(self) -> int:
        return len(self._known)

    def get(self, path: str) -> Known | None:
        """The stream at `path`, if it is remembered."""
        return self._known.get(path)

    def used(self, path: str) -> None:
        """The stream at `path` is forgotten after all others."""
        self._known.move_to_end(path)

    def drop_recent(self, known: Known) -> None:
        """Forget the appends of a stream."""
        self._size -= known.drop_recent()

    def remember(self, stream: Stream, rows: Iterable[Row] = ()) -> Known:
        """Remember what a stream is now, and the `rows` that were appended to it.

        Returns it as it is known: if that is newer, nothing changes.
        """
        known = self._known.get(stream.path)
        if known is None or known.stream.id != stream.id:
            self.forget(stream.path)
            known = self._known[stream.path] = Known(stream)
        elif known.stream.version > stream.version:
            return known  # overtaken by a later one
        for row in rows:
            if known.recent and known.recent[-1].end != row.begin:
                self._size -= known.drop_recent()  # another process has appended meanwhile
            known.recent.append(row)
            known.size += len(row.data) + _ROW
            self._size += len(row.data) + _ROW
        if known.recent and known.recent[-1].end != stream.tail:
            self._size -= known.drop_recent()
        known.stream = stream
        self._known.move_to_end(stream.path)
        while self._size > _RECENT or len(self._known) > _KNOWN:
            path, oldest = next(iter(self._known.items()))
            if len(self._known) == 1:  # too large alone
                while self._size > _RECENT and len(oldest.recent) > 1:
                    size = len(oldest.recent.popleft().data) + _ROW
                    oldest.size -= size
                    self._size -= size
                break
            self.forget(path)
        return known

    def forget(self, path: str) -> None:
        """Forget the stream at `path`."""
        known = self._known.pop(path, None)
        if known is not None:
            self._size -= known.size

    def clear(self) -> None:
        """Forget all streams."""
        self._known.clear()
        self._size = 0
