"""The streams that a process remembers: their last committed state, their recent appends, and chunks of these."""

import math
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from purgatory.streams.core import messages
from purgatory.streams.core.state import Part, Row, Stream
from purgatory.streams.storage.database import Extent

CHUNK: Final = Extent(1024 * 1024, 4096)
"""The extent of a chunk."""
LIVE: Final = Extent(64 * 1024, 64)
"""The same for live reads, because very many may be answered at once. Each row is an event of its own."""
_ROW: Final = 200
"""Bytes of a row in memory, in addition to its data."""
_BYTES: Final = 64 * 1024 * 1024
"""Bytes of streams and their recent appends that are kept in memory."""
_STREAM: Final = 1_000
"""Bytes of a stream in memory, in addition to its texts."""
_MAX_STREAMS: Final = 10_000
"""Streams that are kept in memory."""


def _size(row: Row) -> int:
    # Twice, because the last chunk may contain the data once more, in its body.
    return 2 * len(row.data) + _ROW


@dataclass(slots=True, eq=False)  # the object itself is a key
class Chunk:
    """The data of a stream between two positions. Many readers get the same chunk."""

    stream: Stream
    """The stream when the data was read."""
    begin: int
    end: int
    parts: Sequence[Part] = ()
    body_made: bytes | None = field(default=None, repr=False)
    answers: dict[str, Any] = field(default_factory=dict, repr=False)
    """Answers with it, by the offset that was asked for, in one of two spellings: its readers share them."""

    @property
    def up_to_date(self) -> bool:
        """Whether there was no more."""
        return self.end >= self.stream.tail

    @property
    def is_last(self) -> bool:
        """Whether there will be no more."""
        return self.stream.closed and self.up_to_date

    @property
    def size(self) -> int:
        """Bytes of the body, or a few more."""
        if self.body_made is not None:
            return len(self.body_made)
        return sum(len(row.data) + 1 for _, _, row in self.parts) + 2

    def data(self) -> list[bytes]:
        """Return the data of each row."""
        media = self.stream.media_type
        return [
            row.data
            if (begin, end) == (row.begin, row.end)
            else messages.part(media, row.data, begin - row.begin, end - row.begin)
            for begin, end, row in self.parts
        ]

    def body(self) -> bytes:
        """Return the data as one body."""
        if self.body_made is None:
            self.body_made = messages.join(self.stream.media_type, self.data())
        return self.body_made


@dataclass(slots=True)
class CachedStream:
    """A stream as it was committed, and its last appends."""

    stream: Stream
    recent: deque[Row] = field(default_factory=deque)
    size: int = 0
    """Bytes of `recent`."""
    own_size: int = 0
    """Bytes of `stream`."""
    touching: bool = False
    looked_at: float = -math.inf
    """The loop's time at which it was last looked up in the database."""
    gone: bool = False
    """Whether it is deleted, and not kept for forks."""
    chunk: Chunk | None = None
    """The last chunk that was made, because many readers are at the same position."""
    chunk_extent: Extent = CHUNK
    """The extent with which it was made."""
    keys: tuple[str] = field(init=False)
    """The keys of the reads that wait for it, which share this tuple."""

    def __post_init__(self) -> None:
        self.keys = (self.stream.path,)

    def drop_recent(self) -> int:
        """Forget the appends, and return how many bytes they had."""
        size, self.size = self.size, 0
        self.recent.clear()
        self.chunk = None
        return size

    def recent_chunk(self, position: int, extent: Extent = CHUNK) -> Chunk | None:
        """Return the data behind `position`, up to the extent `extent`, if it is in memory."""
        stream = self.stream
        chunk = self.chunk
        if chunk is not None and chunk.begin == position and chunk.stream is stream and self.chunk_extent == extent:
            return chunk
        if not self.recent or position < self.recent[0].begin:
            return None
        rows = self._recent_from(position, extent.rows)
        if stream.media_type == messages.JSON and position > rows[0].begin:
            return None  # splitting a row of messages takes too long for the loop
        parts: list[Part] = []
        size = 0
        for row in rows:
            parts.append(Part(max(row.begin, position), row.end, row))
            size += len(row.data)
            if size >= extent.size:
                break
        self.chunk_extent = extent
        chunk = self.chunk = Chunk(stream, position, parts[-1].end, parts)
        return chunk

    def _recent_from(self, position: int, limit: int) -> list[Row]:
        """Return at most `limit` rows, from the row with the unit at `position` on."""
        rows = self.recent
        count = len(rows)
        index = count - 1 if rows[-1].begin <= position else bisect_right(rows, position, key=itemgetter(0)) - 1
        if 2 * index < count:
            return list(islice(rows, index, index + limit))
        # A deque is walked from its nearer end.
        following = count - index
        found = list(islice(reversed(rows), max(0, following - limit), following))
        found.reverse()
        return found


class Cache:
    """The streams that were used last, by path."""

    def __init__(self) -> None:
        self._cached: OrderedDict[str, CachedStream] = OrderedDict()
        self._size = 0

    def __contains__(self, path: str) -> bool:
        return path in self._cached

    def __len__(self) -> int:
        return len(self._cached)

    def get(self, path: str) -> CachedStream | None:
        """Return the stream at `path`, if it is remembered."""
        return self._cached.get(path)

    def used(self, path: str) -> None:
        """Make the stream at `path` the last one to be forgotten."""
        self._cached.move_to_end(path)

    def drop_recent(self, cached: CachedStream) -> None:
        """Forget the appends of a stream."""
        self._size -= cached.drop_recent()

    def remember(self, stream: Stream, rows: Iterable[Row] = ()) -> CachedStream:
        """Remember what a stream is now, and the `rows` that were appended to it.

        Return the cached state. If that is newer, nothing changes.
        """
        cached = self._cached.get(stream.path)
        if cached is None or cached.stream.id != stream.id:
            self.forget(stream.path)
            cached = self._cached[stream.path] = CachedStream(stream)
        elif cached.stream.version > stream.version:
            return cached  # overtaken by a later one
        # A character may have four bytes.
        own_size = _STREAM + 4 * stream.text_size
        self._size += own_size - cached.own_size
        cached.own_size = own_size
        for row in rows:
            if cached.recent and cached.recent[-1].end != row.begin:
                self._size -= cached.drop_recent()  # another process has appended meanwhile
            cached.recent.append(row)
            cached.size += _size(row)
            self._size += _size(row)
        if cached.recent and cached.recent[-1].end != stream.tail:
            self._size -= cached.drop_recent()
        cached.stream = stream
        self._cached.move_to_end(stream.path)
        while self._size > _BYTES or len(self._cached) > _MAX_STREAMS:
            path, oldest = next(iter(self._cached.items()))
            if len(self._cached) == 1:  # too large alone
                while self._size > _BYTES and len(oldest.recent) > 1:
                    size = _size(oldest.recent.popleft())
                    oldest.size -= size
                    self._size -= size
                break
            self.forget(path)
        return cached

    def forget(self, path: str) -> None:
        """Forget the stream at `path`."""
        cached = self._cached.pop(path, None)
        if cached is not None:
            self._size -= cached.size + cached.own_size

    def clear(self) -> None:
        """Forget all streams."""
        self._cached.clear()
        self._size = 0
