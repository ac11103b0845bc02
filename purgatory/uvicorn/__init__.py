"""uvicorn with requests that are parked while they wait: `python -m purgatory.uvicorn app:app`."""

from typing import TYPE_CHECKING

from purgatory._extras import missing

if TYPE_CHECKING:
    from purgatory.uvicorn.protocol import ParkingProtocol
else:
    try:
        from purgatory.uvicorn.protocol import ParkingProtocol
    except ModuleNotFoundError as _error:
        raise missing(_error, "server") from None
    except ImportError as _error:  # a uvicorn that is not known
        from purgatory.uvicorn.unparked import unparked

        ParkingProtocol = unparked(_error)

__all__ = ["ParkingProtocol"]
