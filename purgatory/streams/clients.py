"""The requests of each client that wait, or are in progress: a client may have so many."""

__all__ = ["Clients", "TooManyRequests"]


class TooManyRequests(Exception):
    """The client has as many requests as it may."""


class Clients:
    """Counts requests by the address of their client."""

    def __init__(self, most: int, what: str) -> None:
        """Refuse more than `most` requests of a client, which are named `what` in the error."""
        self._most = most
        self._what = what
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        """The number of clients that have requests."""
        return len(self._counts)

    def check(self, address: str) -> None:
        """Raise `TooManyRequests` if the client has as many as it may."""
        if self._counts.get(address, 0) >= self._most:
            raise TooManyRequests(f"the client has {self._most} {self._what}, as many as it may")

    def enter(self, address: str) -> None:
        """Count a request, until `leave`."""
        self._counts[address] = self._counts.get(address, 0) + 1

    def leave(self, address: str) -> None:
        """A request has ended."""
        count = self._counts[address] - 1
        if count:
            self._counts[address] = count
        else:
            del self._counts[address]
