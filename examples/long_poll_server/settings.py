"""The settings of an operator."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from purgatory.journal import Journal


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one server. It can be pickled, so that other processes are started with it."""

    data: Path = Path("data")
    """The directory of the messages."""
    database: str | None = field(default=None, repr=False)
    """Where the messages are instead: a PostgreSQL database. There may be a password in it."""
    max_wait: float = 50.0
    """Seconds that a request waits, at the most; less than the minute after which nginx gives up."""
    max_pending: int = 100_000
    """More fetches, or produces, do not wait."""
    max_pending_client: int = 1_000
    """More fetches, or produces, of one address are refused."""
    max_topics: int = 10_000
    """More are not created."""
    max_messages: int = 1_000_000
    """A topic does not take more."""
    allowed_hosts: Sequence[str] = ()
    """The names under which clients know this server, beside `localhost` and addresses. `*` is any."""
    publish_rate: float | None = None
    """Messages a second of each client; the answers to more are delayed."""
    write_timeout: float = 30.0
    """Seconds for which a client may take nothing of its answer before it is hung up on."""
    journal: Path | None = None
    """The directory to which is written what waited, for how long, and why."""
    instance: str = field(default_factory=lambda: f"long-poll-{socket.gethostname()}")
    """This server's name, in the journal and, with a database, in its answers."""
    demo: bool = False
    """Whether the page may ask for demo traffic."""

    def open_journal(self) -> "Journal | None":
        """The journal, if there is to be one.

        Raises `ModuleNotFoundError` if its extra is not installed, `ValueError` for a name that it does not take (the
        command has looked at that), and `OSError` if its directory cannot be written to.
        """
        if self.journal is None:
            return None
        from purgatory.journal import Journal

        return Journal(self.journal, self.instance)
