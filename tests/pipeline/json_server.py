"""Streams of JSON on `purgatory serve`."""

import json
import re
from typing import Any
from uuid import uuid4

import httpx

from tests.streams.processes import JSON, ROOT, ServerProcess


def stream(server: ServerProcess, name: str, *messages: Any) -> str:
    """The URL of a new stream with these messages, whose name begins with `name`."""
    url = f"{server.url}{ROOT}/{name}-{uuid4().hex}"
    httpx.put(url, content=json.dumps(messages), headers=JSON, timeout=60).raise_for_status()
    return url


def append(url: str, *messages: Any) -> str:
    """Append the messages, and return the offset behind them."""
    response = httpx.post(url, content=json.dumps(messages), headers=JSON, timeout=60).raise_for_status()
    return response.headers["Stream-Next-Offset"]


def waiting(server: ServerProcess) -> int:
    """How many reads wait."""
    metrics = httpx.get(f"{server.url}/metrics", timeout=60).text
    found = re.search(r'^purgatory_delayed_operations\{purgatory="read"\} (\d+)', metrics, re.MULTILINE)
    assert found is not None
    return int(found[1])
