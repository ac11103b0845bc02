"""Parking behind middlewares that wrap `send`.

If a middleware wraps `send` only to change or read messages, the wrapper can be called after the middleware's own
`__call__` has returned. So a request behind it can be parked. The outermost wrapper gets the answer, each wrapper calls
the next one, and the server's own `send` at the end accepts the answer without a task.

A middleware that works after `await self.app(...)` would mistake a parked request for an answered one. A compressor
closes its buffer there, for example, and a tracer ends its span. A wrapper of `send` doesn't tell which kind it is, so
the safe ones must be known. They are in the table below, or the application has declared them with `park_through`, or
they have the attribute `MARK`.

The wrappers are found from the outermost inwards, because each one holds the next by its name in ASGI, `send`. It is a
variable of a function, a keyword of a partial, or an attribute of a method's object.
"""

import math
import sys
from collections.abc import Callable, Hashable
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import cache, partial
from inspect import getmembers, isclass, isfunction
from types import CodeType
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from purgatory.asgi.interface import Message, NotParked, Send, logger

M = TypeVar("M", bound=Callable[..., Any])

MARK: Final = "purgatory_parking"
"""With this attribute, a wrapper of `send` says that it is safe. So does the object whose method it is, or which it has
as its variable `self`."""

_BASE: Final = "starlette.middleware.base"


@dataclass(frozen=True, slots=True)
class _Safe:
    """The properties of a safe wrapper."""

    lighten: Callable[[Any], None] | None = None
    """Drops the parts of the request that the wrapper holds and doesn't need."""
    key: Callable[[Any], Hashable] | None = None
    """Returns what the wrapper's changes depend on besides the messages, or `None` if that isn't known."""
    again: Callable[[Any, Send], Send] | None = None
    """Returns an unused wrapper of the same kind around another `send`."""
    is_stateful: bool = False
    """Whether a wrapper is for one response, because it notes what has been sent."""
    only_notes: bool = False
    """Whether it only notes that a response has started, for its handling of exceptions. Every application has some of
    these. The outermost ones are skipped, because nothing is lost without them and each takes a third of a KiB."""


def _keep_origin(wrapper: Any) -> None:
    """Drop the other headers of the request, because a browser sends two KiB of them."""
    headers = wrapper.keywords["request_headers"]
    origin = [header for header in headers.raw if header[0] == b"origin"]
    wrapper.keywords["request_headers"] = type(headers)(raw=origin)


def _key_of_cors(wrapper: Any) -> Hashable:
    middleware = wrapper.func.__self__
    if type(middleware).__module__ != "starlette.middleware.cors":
        return None  # a derived class may look at more
    return id(middleware), wrapper.keywords["request_headers"].get("origin")


def _cors_again(wrapper: Any, send: Send) -> Send:
    return partial(wrapper.func, **{**wrapper.keywords, "send": send})


_OF_REQUEST: Final = {"app", "send", "initial_message"}
"""Attributes of a responder that its changes don't depend on."""


def _key_of_responder(wrapper: Any) -> Hashable:
    responder = wrapper.__self__
    if type(responder).__module__ != "starlette.middleware.gzip":
        return None
    return type(responder), *(value for name, value in vars(responder).items() if name not in _OF_REQUEST)


def _responder_again(wrapper: Any, send: Send) -> Send:
    responder = copy(wrapper.__self__)  # it is unused, and makes its compressor for the first body
    responder.send = send
    again: Send = getattr(responder, wrapper.__name__)
    return again


def _keep_session(wrapper: Any) -> None:
    """Drop the rest of the request's scope, where FastAPI keeps two KiB."""
    cell = wrapper.__closure__[wrapper.__code__.co_freevars.index("scope")]
    cell.cell_contents = {name: value for name, value in cell.cell_contents.items() if name == "session"}


_types: Final[dict[tuple[str, ...], tuple[str, ...]]] = {}


def _share_types(wrapper: Any) -> None:
    """Let equal lists of content types be one, because each responder makes its own, which takes a kibibyte."""
    responder = wrapper.__self__
    types = responder.exclude_content_types
    if len(_types) < 100:
        _types.setdefault(types, types)
    responder.exclude_content_types = _types.get(types, types)


_NOTES: Final = _Safe(only_notes=True)
_COMPRESSES: Final = _Safe(_share_types, _key_of_responder, _responder_again, is_stateful=True)
_KNOWN: Final[dict[str, dict[str, _Safe]]] = {
    "asgi_correlation_id.middleware": {"CorrelationIdMiddleware": _Safe()},
    "fastapi._body_limit": {"AppBodyLimitMiddleware": _NOTES},
    "starlette._exception_handler": {"wrap_app_handling_exceptions": _NOTES},
    "starlette.middleware.body_limit": {"RequestBodyLimitResponder": _Safe()},
    "starlette.middleware.cors": {"CORSMiddleware": _Safe(_keep_origin, _key_of_cors, _cors_again)},
    "starlette.middleware.errors": {"ServerErrorMiddleware": _NOTES},
    "starlette.middleware.gzip": {"GZipResponder": _COMPRESSES, "IdentityResponder": _COMPRESSES},
    "starlette.middleware.sessions": {"SessionMiddleware": _Safe(_keep_session)},
}
"""The safe middlewares of other libraries, by module and name."""

_codes: Final[dict[CodeType, tuple[_Safe, set[type]]]] = {}
"""The safe wrappers, by the code that all closures of a function share, with the declared classes, because a class that
is derived from them may work after `await self.app(...)`."""
_warned: Final[WeakKeyDictionary[Any, set[str]]] = WeakKeyDictionary()
"""The wrappers that an application was warned of."""


def _unsafe(function: Any, owner: Any, is_declared: bool) -> NotParked:
    if owner is None:
        module = _module(function)
        name = function.__code__.co_qualname.partition(".<locals>")[0].removesuffix(".__call__")
    else:
        module, name = type(owner).__module__, type(owner).__qualname__
    advice = f"if it only changes or reads messages, declare it: purgatory.asgi.park_through({name})"
    if is_declared:
        advice = "it is declared, but the `send` that it wraps isn't found: store that by the name `send`"
    return NotParked(f"{module}.{name} wraps send", advice)


def park_through(middleware: M) -> M:
    """Declare that requests may be parked behind a middleware, because it wraps `send` only to change or read messages.

    Its wrapper is then called after the middleware's own `__call__` has returned, in the request's context (of
    `contextvars`), and outside of a task unless it waits. You can use this as a decorator.

    Args:
        middleware: The class of the middleware, or the function in which the wrapper is defined.

    Returns:
        `middleware`.

    Raises:
        TypeError: It is neither a class nor a function, or derives from `BaseHTTPMiddleware`, which handles the
            request in another task.
    """
    if isclass(middleware) and any(base.__module__ == _BASE for base in middleware.__mro__):
        raise TypeError(f"requests cannot be parked behind {middleware!r}: write it as a pure ASGI middleware")
    if not (isclass(middleware) or isfunction(middleware)):
        raise TypeError(f"middleware must be a class or a function, not {middleware!r}")
    for base in middleware.__mro__ if isclass(middleware) else ():
        _add_known(base.__module__)
    _add(middleware, _Safe())
    return middleware


async def _nothing(message: Message) -> None:
    """Stand at the end of unused wrappers."""


class Wrappers:
    """The wrappers of a request's `send`, which are all safe."""

    __slots__ = ("_safe", "outer")

    def __init__(self, send: Send, own: Send) -> None:
        """Find those between `send` and the server's `own`.

        Raises:
            NotParked: One of them is not known to be safe.
        """
        self._safe: list[tuple[Any, _Safe]] = []
        self.outer: Send = own
        """The wrapper that gets the messages, or the server's own `send` if no wrapper matters."""
        while send is not own:
            function, owner, wrapped = _opened(send)
            safe = _safety(function, owner)
            if safe is None or wrapped is None or wrapped == send:
                raise _unsafe(function, owner, safe is not None)
            if self._safe or not safe.only_notes:
                self._safe.append((send, safe))
            send = wrapped
        if self._safe:
            self.outer = self._safe[0][0]

    def key(self, is_stream: bool) -> Hashable:
        """Return what all changes of the messages depend on besides these, or `None` if that isn't known."""
        keys = []
        for wrapper, safe in self._safe:
            if safe.only_notes:
                continue
            key = None
            if safe.key is not None and not (is_stream and safe.is_stateful):
                # Another version may be made in another way.
                with suppress(AttributeError, KeyError, TypeError):
                    key = safe.key(wrapper)
                    hash(key)
            if key is None:
                return None
            keys.append(key)
        return tuple(keys)

    @property
    def most_at_once(self) -> float:
        """The bytes of a body from which a wrapper works in a thread, and so needs a task."""
        sizes = (getattr(getattr(each, "__self__", None), "thread_minimum_size", math.inf) for each, _ in self._safe)
        return min(sizes, default=math.inf)

    def unused(self) -> "Wrappers":
        """Return unused wrappers of the same kinds, around nothing, if there is a key. They hold no request."""
        unused = Wrappers(_nothing, _nothing)
        for wrapper, safe in self._safe:
            if safe.again is not None:
                unused._safe.append((safe.again(wrapper, _nothing), safe))
        unused.release()
        return unused

    def around(self, send: Send) -> Send:
        """Return wrappers like these, which are unused, around another `send`."""
        for wrapper, safe in reversed(self._safe):
            assert safe.again is not None, "there is a key"
            send = safe.again(wrapper, send)
        return send

    def release(self) -> None:
        """Drop the parts of the request that the known wrappers hold and don't need when they are called."""
        for wrapper, safe in self._safe:
            if safe.lighten is not None:
                # Another version may hold them in another way, and then it keeps them.
                with suppress(AttributeError, KeyError, TypeError, ValueError):
                    safe.lighten(wrapper)


def warn_once(app: Any, why: NotParked) -> None:
    """Log that requests of `app` are not parked, once for each application and reason."""
    try:
        warned = _warned.setdefault(app, set())
    except TypeError:  # there is none, or it takes no weak references
        warned = _warned.setdefault(NotParked, set())
    reason = str(why)
    if reason in warned:
        return
    warned.add(reason)
    logger.warning(
        "the waiting requests of %s are not parked, because %s, so each keeps its task: %s. "
        "See 'Middlewares' in purgatory/uvicorn/PARKING.md",
        "an application" if app is None else type(app).__name__, reason, why.advice,
    )  # fmt: skip


def _absent() -> None:
    """Stand in for a middleware that the installed version does not have."""


def _add(middleware: Callable[..., Any], safe: _Safe) -> None:
    functions: list[Any] = [middleware]
    if isclass(middleware):
        functions = [function for _, function in getmembers(middleware, isfunction)]
        # An overridden method may be called by super(), and counts if it is known to be safe.
        inherited = (value for base in middleware.__mro__ for value in vars(base).values() if isfunction(value))
        functions += [function for function in inherited if function.__code__ in _codes]
    codes = [function.__code__ for function in functions]
    while codes:
        code = codes.pop()
        _, classes = _codes.setdefault(code, (safe, set()))
        if isclass(middleware):
            classes.add(middleware)
        codes += (constant for constant in code.co_consts if isinstance(constant, CodeType))


@cache
def _add_known(module: str) -> None:
    """Add the known middlewares of a module, which is imported because one of them is in use."""
    for name, safe in _KNOWN.get(module, {}).items():
        _add(getattr(sys.modules[module], name, _absent), safe)


def _opened(send: Any) -> tuple[Any, Any, Any]:
    """Return the function of a wrapper, its object or `None`, and the wrapped `send` or `None`."""
    variables: dict[str, Any] = {}
    if isinstance(send, partial):
        variables.update(send.keywords)
        send = send.func
    function = getattr(send, "__func__", send)
    owner = getattr(send, "__self__", None)
    if isfunction(function):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name in ("self", "send"):
                variables.setdefault(name, cell.cell_contents)
        owner = variables.get("self") if owner is None else owner
    else:
        owner, function = send, type(send).__call__
    return function, owner, variables.get("send") or getattr(owner, "send", None)


def _safety(function: Any, owner: Any) -> _Safe | None:
    """Return the properties of a wrapper, or `None` if it is not known to be safe."""
    if _is_marked(function) or _is_marked(owner):
        return _Safe()
    _add_known(_module(function))
    properties = _codes.get(getattr(function, "__code__", None))  # type: ignore[arg-type]
    if properties is None:
        return None
    safe, classes = properties
    return safe if owner is None or not classes or type(owner) in classes else None


def _module(function: Any) -> str:
    name: str = getattr(function, "__globals__", {}).get("__name__", "")  # functools.wraps copies `__module__`
    return name


def _is_marked(wrapper: Any) -> bool:
    # functools.wraps copies the mark of the wrapped function, too.
    return bool(getattr(wrapper, MARK, False)) and not hasattr(wrapper, "__wrapped__")
