"""The same server with asyncio's streams and a task for each client, for comparison."""

import asyncio
import sys
from typing import Any

import hiredis
import uvloop

from examples.redis_server.server import Blocked, Client, Server


class TaskClient(Client):
    """A client whose task waits for it."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Execute the commands of a connection, one after the other."""
        self.transport = writer.transport
        commands = hiredis.Reader()
        try:
            while data := await reader.read(65536):
                commands.feed(data)
                while (command := commands.gets()) is not False:
                    answer = self.execute(command)
                    self.send(await answer if isinstance(answer, Blocked) else answer)
        finally:
            self.connection_lost(None)
            writer.close()

    def unblock(self, answer: Any) -> None:
        """Leave it to the task."""


async def main(port: int) -> None:
    server = Server()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await TaskClient(server).serve(reader, writer)

    await asyncio.start_server(serve, "127.0.0.1", port, backlog=4096)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
