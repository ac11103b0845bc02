"""The waiting and running requests of each client, and their limit."""

__all__ = ["Clients", "TooManyRequests"]


class TooManyRequests(Exception):
    """The client has reached its limit of requests."""


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
        """Raise `TooManyRequests` if the client has reached its limit."""
        if self._counts.get(address, 0) >= self._most:
            raise TooManyRequests(f"the client has reached its limit of {self._most} {self._what}")

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
