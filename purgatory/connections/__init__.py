"""Connections of any asyncio protocol that take less than half a kibibyte while they rest, on uvloop.

class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = connections.add(transport)  # in place of the loop's transport

    def data_received(self, data):
        self.transport.write(data)
        self.transport.rest(3.0)  # seconds without another call, after which it rests

connections = QuietConnections()
server = await loop.create_server(Echo, port=8000)
"""

from purgatory.connections.registry import QuietConnections
from purgatory.connections.transport import QuietTransport

__all__ = ["QuietConnections", "QuietTransport"]
