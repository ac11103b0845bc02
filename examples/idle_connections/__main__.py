"""Run the server."""

import argparse
import asyncio
import math
import signal
import sys
from contextlib import suppress

from examples.idle_connections.server import EchoServer


async def serve(host: str, port: int, timeout: float) -> None:
    """Serve until SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    with suppress(NotImplementedError):  # on Windows, Ctrl-C raises KeyboardInterrupt instead
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with EchoServer(timeout, host, port) as server:
        address, port = server.address
        print(f"listening on {address}:{port}; connections are closed after {timeout:g} silent seconds", flush=True)
        await stopped.wait()
        print(f"connections open {len(server.idle)}, closed because they were silent {server.closed}", flush=True)


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser("idle_connections", description="A TCP server that closes silent connections.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=9000, help="0 takes a free one (default: 9000)")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds of silence (default: 30)")
    options = parser.parse_args()
    if not 0 < options.timeout < math.inf:
        parser.error(f"--timeout must be more than 0 and finite, not {options.timeout}")
    if not 0 <= options.port <= 65535:
        parser.error(f"--port must be from 0 to 65535, not {options.port}")
    try:
        asyncio.run(serve(options.host, options.port, options.timeout))
    except OSError as error:
        sys.exit(f"cannot listen on {options.host}:{options.port}: {error.strerror}")


if __name__ == "__main__":
    main()
