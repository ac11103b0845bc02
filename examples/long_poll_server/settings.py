"""What an operator decides."""

import socket
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one server. It can be pickled, so that other processes are started with it."""

    data: Path = Path("data")
    """The directory of the messages."""
    max_pending: int | None = None
    """More fetches, or produces, do not wait."""
    publish_rate: float | None = None
    """Messages a second of each client; the answers to more are delayed."""
    write_timeout: float = 30.0
    """Seconds for which a client may take nothing of its answer before it is hung up on."""
    journal: Path | None = None
    """The directory to which is written what waited, for how long, and why."""
    instance: str = field(default_factory=lambda: f"long-poll-{socket.gethostname()}")
    """This server's name, in the journal."""
    demo: bool = False
    """Whether the page may ask for demo traffic."""
