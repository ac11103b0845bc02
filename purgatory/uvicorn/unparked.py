"""uvicorn's own protocol, for a release of uvicorn whose names have changed."""

import logging
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol


def unparked(error: ImportError) -> type[Any]:
    """Return uvicorn's protocol, which logs with the first connection why nothing is parked."""

    class UnparkedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        fault = f"requests that wait are not parked, and keep their tasks: {error}"
        is_logged = False

        def connection_made(self, transport: Any) -> None:
            if not UnparkedProtocol.is_logged:
                UnparkedProtocol.is_logged = True
                logging.getLogger("uvicorn.error").warning("%s", self.fault)
            super().connection_made(transport)

    return UnparkedProtocol
