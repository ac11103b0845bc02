"""The requests in progress of each client: a client may have so many."""

__all__ = ["Clients", "TooManyRequests"]


class TooManyRequests(Exception):
    """The client has as many requests in progress as it may."""


class Clients:
    """Counts the requests in progress by the address of their client."""

    def __init__(self, most: int) -> None:
        """Refuse more than `most` requests of a client."""
        self.most = most
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        """The number of clients that have requests in progress."""
        return len(self._counts)

    def enter(self, address: str) -> None:
        """Count a request, until `leave`. Raises `TooManyRequests`."""
        if self._counts.get(address, 0) >= self.most:
            raise TooManyRequests(f"the client has {self.most} requests in progress, as many as it may")
        self.stay(address)

    def stay(self, address: str) -> None:
        """Count a request that was let in, until `leave`."""
        self._counts[address] = self._counts.get(address, 0) + 1

    def leave(self, address: str) -> None:
        """A request has ended."""
        count = self._counts[address] - 1
        if count:
            self._counts[address] = count
        else:
            del self._counts[address]
