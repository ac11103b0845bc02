"""uvicorn with requests that are parked while they wait: `python -m purgatory.uvicorn app:app`."""

from purgatory._extras import missing

try:
    from purgatory.uvicorn.protocol import ParkingProtocol
except ModuleNotFoundError as _error:
    raise missing(_error, "server") from None
except ImportError as _error:  # a uvicorn that is not known
    from purgatory.uvicorn.unparked import unparked

    ParkingProtocol = unparked(_error)  # type: ignore[misc]

__all__ = ["ParkingProtocol"]
