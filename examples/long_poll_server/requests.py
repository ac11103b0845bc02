"""The checks of a request. An invalid one is refused with a sentence about the fault."""

import asyncio
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from starlette.exceptions import HTTPException
from starlette.requests import Request

from examples.long_poll_server.limits import Held

MAX_BODY_BYTES = 1024 * 1024
MAX_BODIES_BYTES = 64 * 1024 * 1024
"""Of all bodies that are being read."""
BODY_SECONDS = 30.0
MAX_MESSAGES = 10_000
MAX_ACKS = 100
MAX_OFFSET = 2**62

NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
DIGITS = re.compile(r"[0-9]{1,19}")
NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,4})?")


def name(kind: str, value: str) -> str:
    """The name of a topic or a replica, by Kafka's rule."""
    if not NAME.fullmatch(value) or value in {".", ".."}:
        raise HTTPException(400, f"a {kind} is named by 1 to 249 of the characters A-Z a-z 0-9 . _ - and not . or ..")
    return value


def query(request: Request, known: set[str]) -> Mapping[str, str]:
    """The query's parameters, each known and given once."""
    parameters: dict[str, str] = {}
    for key, value in request.query_params.multi_items():
        if key not in known:
            raise HTTPException(400, f"unknown parameter {key[:40]!r}; there are {', '.join(sorted(known))}")
        if key in parameters:
            raise HTTPException(400, f"{key} is given twice")
        parameters[key] = value
    return parameters


def integer(parameters: Mapping[str, str], key: str, default: int, least: int, most: int) -> int:
    """A whole number between `least` and `most`."""
    value = parameters.get(key)
    if value is None:
        return default
    if not DIGITS.fullmatch(value) or not least <= int(value) <= most:
        raise HTTPException(400, f"{key} must be a whole number from {least} to {most}, not {value[:40]!r}")
    return int(value)


def seconds(parameters: Mapping[str, str], key: str, default: float) -> float:
    """A number of seconds. Any: what is more than a server waits is cut to that later."""
    value = parameters.get(key)
    if value is None:
        return default
    if not NUMBER.fullmatch(value) or float(value) == math.inf:
        raise HTTPException(400, f"{key} must be a number of seconds, 0 or more, not {value[:40]!r}")
    return float(value)


def bodies() -> Held:
    """The counter of the bodies that are being read."""
    return Held(MAX_BODIES_BYTES, "the server reads as many bodies as it may")


async def value(request: Request, bodies: Held) -> str:
    """The value in the body `{"value": any}`, as JSON."""
    try:
        return json.dumps(
            await member(request, "value", bodies, MAX_BODY_BYTES), separators=(",", ":"), allow_nan=False
        )
    except RecursionError:
        raise HTTPException(400, "the body is nested too deeply") from None
    except ValueError as error:  # a number that is beyond all of them
        raise HTTPException(400, f"the body is not JSON: {error}") from None


async def member(request: Request, key: str, bodies: Held, most: int) -> Any:
    """The value of the body `{key: any}` of up to `most` bytes, which are counted among `bodies` meanwhile."""
    with bodies.some() as hold:
        body = await _body(request, most, hold)
        try:
            parsed = json.loads(body, parse_constant=_no_constant)
        except RecursionError:
            raise HTTPException(400, "the body is nested too deeply") from None
        except ValueError as error:
            raise HTTPException(400, f"the body is not JSON: {error}") from None
    if not isinstance(parsed, dict) or parsed.keys() != {key}:
        raise HTTPException(400, f'the body must be a JSON object of one member: {{"{key}": …}}')
    return parsed[key]


async def _body(request: Request, most: int, hold: Callable[[int], None]) -> bytearray:
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                if len(body) + len(part) > most:
                    raise HTTPException(413, f"the body must not be longer than {most} bytes")
                hold(len(body) + len(part))
                body += part
    except TimeoutError:
        raise HTTPException(408, f"the body did not come within {BODY_SECONDS:g} seconds") from None
    return body


def _no_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
