"""The names of uvicorn's that it doesn't document, so that any release of it may change them."""

from importlib.metadata import version
from typing import Final

from uvicorn import Config

TESTED: Final = "0.53 to 0.54"
"""The releases with which the tests have passed."""


def _unlike(fault: object) -> ImportError:
    return ImportError(f"uvicorn {version('uvicorn')} is not like the releases that were tested, {TESTED}: {fault}")


try:
    from uvicorn.config import HTTP_PROTOCOLS, LOOP_FACTORIES
    from uvicorn.importer import ImportFromStringError, import_from_string
    from uvicorn.protocols.http.flow_control import FlowControl
    from uvicorn.protocols.http.httptools_impl import (
        HEADER_RE,
        HEADER_VALUE_RE,
        STATUS_LINE,
        HttpToolsProtocol,
        RequestResponseCycle,
    )
    from uvicorn.protocols.utils import get_local_addr, get_path_with_query_string
    from uvicorn.server import ServerState
except ImportError as _error:
    if _error.name == "httptools":
        raise
    raise _unlike(_error) from _error

__all__ = [
    "HEADER_RE",
    "HEADER_VALUE_RE",
    "HTTP_PROTOCOLS",
    "LOOP_FACTORIES",
    "STATUS_LINE",
    "Config",
    "HttpToolsProtocol",
    "ImportFromStringError",
    "RequestResponseCycle",
    "ServerState",
    "get_local_addr",
    "get_path_with_query_string",
    "import_from_string",
]

USED: Final[dict[type, str]] = {
    Config: "loaded_app timeout_keep_alive",
    FlowControl: "pause_reading resume_reading write_paused",
    HttpToolsProtocol: "_unset_keepalive_if_required app app_state client config connections cycle expect_100_continue "
    "flow handle_websocket_upgrade headers loop on_body on_header on_headers_complete on_message_begin "
    "on_message_complete on_response_complete parser pause_writing pipeline scope server_state shutdown "
    "timeout_keep_alive timeout_keep_alive_handler timeout_keep_alive_task transport url",
    RequestResponseCycle: "disconnected flow keep_alive message_event more_body response_complete response_started "
    "scope send transport waiting_for_100_continue",
    ServerState: "connections default_headers total_requests",
}
"""The attributes of its objects, some of which a subclass in `purgatory.streams` uses."""


def _has(kind: type, name: str) -> bool:
    """Whether objects of a class have an attribute: of the class, or one that its methods use."""
    codes = [method.__code__ for method in vars(kind).values() if hasattr(method, "__code__")]
    return hasattr(kind, name) or any(name in code.co_names for code in codes)


_lacking: Final = [f"{kind.__name__}.{name}" for kind in USED for name in USED[kind].split() if not _has(kind, name)]
if _lacking:
    raise _unlike(f"there is no {', '.join(_lacking)}")
