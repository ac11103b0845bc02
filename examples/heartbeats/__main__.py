"""Run the coordinator."""

import argparse
import asyncio
import math
import re
import signal
import sys
from typing import cast

from examples.heartbeats.groups import Groups
from purgatory import DelayedOperationPurgatory

BEAT = re.compile(rb"([A-Za-z0-9._-]{1,100}) ([A-Za-z0-9._-]{1,100})( leave)?\n?")


class Coordinator(asyncio.DatagramProtocol):
    """Takes the members' datagrams."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        beat = BEAT.fullmatch(data)
        if beat is None:
            self._transport.sendto(b"error: send GROUP MEMBER, or GROUP MEMBER leave\n", address)
            return
        group, member = beat[1].decode(), beat[2].decode()
        if beat[3]:
            self._groups.leave(group, member)
        else:
            known = self._groups.beat(group, member)
            members = " ".join(known.members)
            self._transport.sendto(f"generation {known.generation} members {members}\n".encode(), address)


async def serve(host: str, port: int, session_timeout: float) -> None:
    """Serve until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    purgatory = DelayedOperationPurgatory("heartbeat", tick=min(0.1, session_timeout / 10))
    groups = Groups(purgatory, session_timeout, lambda *change: print(*change, flush=True))
    transport, _ = await loop.create_datagram_endpoint(lambda: Coordinator(groups), (host, port))
    address, port = transport.get_extra_info("sockname")[:2]
    print(f"listening on {address}:{port}; members are dropped after {session_timeout:g} silent seconds", flush=True)
    await stopped.wait()
    transport.close()
    purgatory.cancel_all()
    await purgatory.aclose()


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser("heartbeats", description="Drops members of groups that are silent.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=9001, help="UDP; 0 takes a free one (default: 9001)")
    parser.add_argument("--session-timeout", type=float, default=10.0, help="seconds of silence (default: 10)")
    options = parser.parse_args()
    if not 0 < options.session_timeout < math.inf:
        parser.error(f"--session-timeout must be more than 0 and finite, not {options.session_timeout}")
    if not 0 <= options.port <= 65535:
        parser.error(f"--port must be from 0 to 65535, not {options.port}")
    try:
        asyncio.run(serve(options.host, options.port, options.session_timeout))
    except OSError as error:
        sys.exit(f"cannot listen on {options.host}:{options.port}: {error.strerror}")


if __name__ == "__main__":
    main()
