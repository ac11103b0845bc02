"""Server-sent events, and how they are encoded.

Format: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from purgatory.asgi.interface import Message

COMMENT: Final = b":\n\n"
"""The heartbeat of a stream."""


@dataclass(frozen=True, slots=True)
class Event:
    """A server-sent event.

    For example:

        Event(json.dumps({"offset": 42}), id="42", event="message")
    """

    data: str
    """The text that the client gets as `event.data`. Line ends are converted to the format's."""
    id: str | None = None
    """The id that the client sends back as `Last-Event-ID` when it connects again. Not empty, no line ends, no NUL."""
    event: str | None = None
    """The event's type, if it is not `message`. Not empty, no line ends."""
    retry: int | None = None
    """Milliseconds after which the client must connect again if it has lost the connection."""

    def __post_init__(self) -> None:
        if not isinstance(self.data, str):
            raise TypeError(f"data must be a str, not {self.data!r}: pass json.dumps(value)")
        for name, value in (("id", self.id), ("event", self.event)):
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{name} must be a str, not {value!r}")
        if self.id is not None and (not self.id or re.search("[\r\n\0]", self.id)):
            raise ValueError(f"id must be a non-empty str without line ends and NUL, not {self.id!r}")
        if self.event is not None and (not self.event or re.search("[\r\n]", self.event)):
            raise ValueError(f"event must be a non-empty str without line ends, not {self.event!r}")
        if self.retry is not None and self.retry < 0:
            raise ValueError(f"retry must be at least 0 milliseconds, not {self.retry!r}")

    def encode(self) -> bytes:
        """Return the bytes of the event as they are sent."""
        return _encode(self) if len(self.data) <= _KEPT else _encode.__wrapped__(self)


_KEPT: Final = 64 * 1024
"""Characters of data up to which an event is kept with its bytes."""


@lru_cache(16)  # a broadcast gives the same few events to very many streams
def _encode(event: Event) -> bytes:
    lines = []
    if event.event is not None:
        lines.append(f"event: {event.event}")
    if event.id is not None:
        lines.append(f"id: {event.id}")
    if event.retry is not None:
        lines.append(f"retry: {event.retry}")
    return "\n".join([*lines, data_lines(event.data), "", ""]).encode()


def data_lines(text: str) -> str:
    """Return the lines of an event that contain its data."""
    # No loop over the lines, because there may be millions. The format removes one space.
    data = "\n" + text.replace("\r\n", "\n").replace("\r", "\n")
    return data.replace("\n", "\ndata:").replace("\ndata: ", "\ndata:  ").removeprefix("\n")


def encoded(events: Iterable[Event]) -> tuple[bytes, str | None]:
    """Return the bytes that are sent for `events`, and their last id. Raise `TypeError` if they are not events."""
    if isinstance(events, (str, Event)) or not isinstance(events, Iterable):
        raise TypeError(f"render must return a list of events, not {_a(events)}: return [{_suggested(events)}]")
    chunks = []
    last_event_id = None
    for event in events:
        if not isinstance(event, Event):
            raise TypeError(f"render must return a list of events, not of {_a(event)}: return [{_suggested(event)}, …]")
        chunks.append(event.encode())
        if event.id is not None:
            last_event_id = event.id
    return b"".join(chunks) or COMMENT, last_event_id


def _a(value: object) -> str:
    return f"a {type(value).__name__}"


def _suggested(value: object) -> str:
    if isinstance(value, Event):
        return "event"
    return "Event(text)" if isinstance(value, str) else "Event(json.dumps(value))"


# New messages each time, because a middleware may change them in place.


def end() -> Message:
    """Return the last message of a response."""
    return {"type": "http.response.body", "body": b""}


def chunk(body: bytes) -> Message:
    """Return a message with a part of a response."""
    return {"type": "http.response.body", "body": body, "more_body": True}
