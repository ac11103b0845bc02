"""The reasons to refuse a request to a stream. The HTTP side chooses the status of each."""


class StreamsError(Exception):
    """The base of all these errors. When one is raised, nothing has changed."""


class Invalid(StreamsError):
    """The request is malformed."""


class NotFound(StreamsError):
    """There is no such stream."""


class Gone(StreamsError):
    """The stream was deleted, and is kept only for its forks."""


class Forbidden(StreamsError):
    """A limit of the server forbids it."""


class Full(StreamsError):
    """The stream would exceed its greatest length."""


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
