"""uvicorn with requests that are parked while they wait: `python -m purgatory.uvicorn app:app`.

`ParkingProtocol` is the protocol class: `uvicorn.Config(app, http=ParkingProtocol)`.
"""

from purgatory.uvicorn.protocol import ParkingProtocol

__all__ = ["ParkingProtocol"]
