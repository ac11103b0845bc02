"""uvicorn with requests that are parked while they wait: `python -m purgatory.uvicorn app:app`.

`ParkingProtocol` is the protocol class: `uvicorn.Config(app, http=ParkingProtocol)`.
"""

try:
    from purgatory.uvicorn.protocol import ParkingProtocol
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(f"{_error}: pip install 'asyncio-purgatory[server]'", name=_error.name) from None

__all__ = ["ParkingProtocol"]
