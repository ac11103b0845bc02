"""uvicorn with requests that are parked while they wait: `python -m purgatory.uvicorn app:app`."""

import logging

from purgatory._extras import missing

try:
    from purgatory.uvicorn.protocol import ParkingProtocol
except ModuleNotFoundError as _error:
    raise missing(_error, "server") from None
except ImportError as _error:  # another uvicorn than those that are known
    from uvicorn.protocols.http.auto import AutoHTTPProtocol as ParkingProtocol  # type: ignore[assignment]

    logging.getLogger("uvicorn.error").warning("requests that wait are not parked, and keep their tasks: %s", _error)

__all__ = ["ParkingProtocol"]
