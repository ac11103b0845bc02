"""uvicorn with requests that are parked while they wait: `python -m purgatory.uvicorn app:app`."""

from purgatory._extras import missing

try:
    from purgatory.uvicorn.protocol import ParkingProtocol
except ModuleNotFoundError as _error:
    raise missing(_error, "server") from None

__all__ = ["ParkingProtocol"]
