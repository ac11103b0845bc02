"""uvicorn with requests that are parked while they wait: `python -m purgatory.uvicorn app:app`.

`ParkingProtocol` is the protocol class: `uvicorn.Config(app, http=ParkingProtocol)`.
"""

from purgatory._extras import missing

try:
    from purgatory.uvicorn.protocol import ParkingProtocol
except ModuleNotFoundError as _error:
    raise missing(_error, "server") from None

__all__ = ["ParkingProtocol"]
