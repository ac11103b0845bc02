"""The reasons to refuse a request to a stream. The HTTP side says which status each has."""

__all__ = [
    "Conflict",
    "Forbidden",
    "Full",
    "Gone",
    "Invalid",
    "NotFound",
    "SequenceGap",
    "StaleEpoch",
    "StreamClosed",
    "StreamsError",
]


class StreamsError(Exception):
    """The base of these. Nothing has changed when one is raised."""


class Invalid(StreamsError):
    """The request is malformed."""


class NotFound(StreamsError):
    """There is no such stream."""


class Gone(StreamsError):
    """The stream was deleted, and is kept for its forks alone."""


class Forbidden(StreamsError):
    """A limit of the server forbids it."""


class Full(StreamsError):
    """The stream would become longer than it may."""


class Conflict(StreamsError):
    """The request contradicts the stream's configuration or order."""


class StreamClosed(Conflict):
    """Nothing more can be appended to a closed stream."""

    def __init__(self, tail: int) -> None:
        super().__init__("the stream is closed")
        self.tail = tail


class StaleEpoch(StreamsError):
    """Another producer has taken the producer's name with a later epoch."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"Producer-Epoch must be at least {epoch}: a newer instance of the producer has appended")
        self.epoch = epoch


class SequenceGap(Conflict):
    """An earlier append of the producer is missing."""

    def __init__(self, expected: int, received: int) -> None:
        super().__init__(f"Producer-Seq must be {expected}, not {received}: send the missing appends first")
        self.expected = expected
        self.received = received
