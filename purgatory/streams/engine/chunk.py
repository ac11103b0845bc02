"""A chunk: the part of a stream that a reader gets at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from purgatory.streams.core import messages
from purgatory.streams.core.state import Part, Stream


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
