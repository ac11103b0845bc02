"""Long polls and event streams on any ASGI server and framework.

`DelayedResponse` is a response that is sent when an operation is done, and `EventStream` a response of server-sent
events. On a server with the ASGI extension `purgatory.parking`, a client that waits costs no task.
`unless_disconnected` awaits an operation in a handler, and stops waiting when the client disconnects.
`closing_on_shutdown` closes purgatories when shutdown begins, because a server notifies its application only when all
connections have closed, and the application's own long polls keep them open.
"""

import purgatory.lowlevel  # noqa: F401 - it says so if another distribution has overwritten a part of this one
from purgatory.asgi.disconnects import ClientDisconnected, unless_disconnected
from purgatory.asgi.event import Event
from purgatory.asgi.event_stream import EventStream
from purgatory.asgi.in_scope import DelayedInScope
from purgatory.asgi.middleware import park_through
from purgatory.asgi.parking import ParkingStatistics, parking_statistics
from purgatory.asgi.response import DelayedResponse
from purgatory.asgi.shutdown import closing_on_shutdown

__all__ = [
    "ClientDisconnected",
    "DelayedInScope",
    "DelayedResponse",
    "Event",
    "EventStream",
    "ParkingStatistics",
    "closing_on_shutdown",
    "park_through",
    "parking_statistics",
    "unless_disconnected",
]
