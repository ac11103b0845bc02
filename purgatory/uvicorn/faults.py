"""What keeps requests from being parked, said before the server starts."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from purgatory.connections.transport import can_replace
from purgatory.uvicorn.names import HTTP_PROTOCOLS, LOOP_FACTORIES, ImportFromStringError, import_from_string
from purgatory.uvicorn.protocol import ParkingProtocol
from purgatory.uvicorn.shared import unable


def faults(http: str, loop: str) -> Iterator[str]:
    """Say why nothing will be parked with these options of uvicorn's. It reports wrong ones itself."""
    if http in HTTP_PROTOCOLS or not _is_ours(http):
        yield f"requests that wait are not parked, and keep their tasks, because of --http {http}: leave it out"
    elif loop not in LOOP_FACTORIES:  # uvicorn's own kinds can do all that is needed
        with suppress(ImportFromStringError, OSError), asyncio.Runner(loop_factory=import_from_string(loop)) as runner:
            if not runner.run(_is_able()):
                yield unable(runner.get_loop())


def _is_ours(http: str) -> bool:
    with suppress(ImportFromStringError):
        kind = import_from_string(http)
        return isinstance(kind, type) and issubclass(kind, ParkingProtocol)
    return True  # perhaps, because it may be in --app-dir


async def _is_able() -> bool:
    """Return whether the running loop lets another protocol take over a connection."""
    found: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    class Probe(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            found.set_result(can_replace(transport))
            transport.abort()

    server = await asyncio.get_running_loop().create_server(Probe, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()):
        is_able = await found
    server.close()
    return is_able
