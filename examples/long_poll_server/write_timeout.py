"""uvicorn has no time-out for writing, and no bound on what the kernel holds of an answer. The kernel has both."""

import math
import socket

import uvicorn

from examples.long_poll_server.store import PAGE_BYTES


class Server(uvicorn.Server):
    """uvicorn, but a client that does not read is hung up on, and costs the kernel little meanwhile.

    Else it keeps its connection for ever, with up to four MiB of its answer in the kernel (`net.ipv4.tcp_wmem`).
    """

    def __init__(self, config: uvicorn.Config, write_timeout: float) -> None:
        """Hang up on a client that takes nothing of its answer for `write_timeout` seconds."""
        super().__init__(config)
        self.write_timeout = write_timeout

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            for listening in server.sockets:
                set_write_timeout(listening, self.write_timeout)


def set_write_timeout(listening: socket.SocketType, seconds: float) -> None:
    """For the connections that `listening` will take: they inherit it."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux has it
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, math.ceil(1000 * seconds))
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # and so has macOS
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, PAGE_BYTES)
