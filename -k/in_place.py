
from uvicorn.protocols.http import httptools_impl

from purgatory.uvicorn import ParkingProtocol


made = 0


class HttpToolsProtocol(ParkingProtocol):  # the tests ask for the name
    def connection_made(self, transport):
        global made
        made += 1
        super().connection_made(transport)


httptools_impl.HttpToolsProtocol = HttpToolsProtocol


def pytest_terminal_summary(terminalreporter):
    terminalreporter.line(f"connections with ParkingProtocol: {made}")
