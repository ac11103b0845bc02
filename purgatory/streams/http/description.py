"""The description of the server at `/openapi.json`, in OpenAPI 3.1. Tests compare it with the server's answers."""

import json
from functools import cache
from importlib.resources import files
from typing import Any

from purgatory.streams.settings import Settings


def describe(settings: Settings, prefix: str = "") -> dict[str, Any]:
    """The description of a server with these settings, at the path `prefix`."""
    text = _text()
    for name in ("long_poll_timeout", "max_streams", "max_units"):
        text = text.replace(f"{{{name}}}", f"{getattr(settings, name)}".removesuffix(".0"))
    described: dict[str, Any] = json.loads(text)
    return {**described, "servers": [{"url": prefix}]} if prefix else described


@cache
def _text() -> str:
    return files(__package__).joinpath("openapi.json").read_text("utf-8")
