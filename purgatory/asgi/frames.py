"""What is left to run between a response and the server: if there is anything, the request must not be parked.

A middleware may work after `await self.app(...)`. A timer notes the time there, a semaphore lets the next request in,
a database session is closed. If the request behind it was parked, the application would return before the answer, and
all of that would come too early.

When the response decides, all these middlewares are on the stack, whether they wrap `send` or not. Each frame is a
coroutine at an `await`, and the code behind that tells what is left: nothing, if it only returns. Handlers of
exceptions don't count, because the application returns without one. What was found is kept by the place in the code.

Two kinds show no frame. If another task runs the response, the frames don't lead to the server's. A coroutine that was
compiled, by Cython or mypyc, has none, so each new chain of frames of an endpoint is compared once with what the task
awaits, and always if the scope names no application.
"""

import asyncio
import dis
from collections.abc import Iterator
from inspect import CO_COROUTINE
from types import CodeType, CoroutineType, FrameType
from typing import Any, Final

from purgatory._frames import place_of, walk
from purgatory.asgi.interface import NotParked, Scope

_MOST: Final = 100_000
"""Places that are kept. Beyond that they are forgotten, because a program may make code again and again."""

_MOST_CHAINS: Final = 1000
"""Chains that are kept. There are fewer, because a client may choose the path that an application is mounted at."""

_AWAIT: Final = ("SEND", "YIELD_VALUE", "RESUME", "JUMP_BACKWARD_NO_INTERRUPT", "CLEANUP_THROW", "END_SEND")
"""The instructions of an `await` that has begun."""

_HARMLESS: Final = frozenset(
    (
        *_AWAIT,
        *("CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "POP_TOP", "COPY", "SWAP", "LOAD_CONST", "LOAD_COMMON_CONSTANT"),
        *("LOAD_SMALL_INT", "LOAD_DEREF", "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "STORE_FAST"),
        *("STORE_FAST_LOAD_FAST", "DELETE_FAST"),
    )
)
"""Instructions that only move values between a function's own variables."""

_FINISHING: Final[dict[tuple[str, str], str | None]] = {
    ("fastapi.middleware.asyncexitstack", "AsyncExitStackMiddleware.__call__"): "fastapi_middleware_astack",
    ("fastapi.routing", "request_response.<locals>.app.<locals>.app"): "fastapi_inner_astack",
    ("starlette.middleware.body_limit", "RequestBodyLimitResponder.__call__"): None,  # removes its keys of the scope
}
"""Functions of others whose work after the application is harmless, the first two if their stack closes nothing.

The stacks are in the scope, by these names."""

_known: Final[dict[int, bool]] = {}
"""Whether nothing is left to run behind a place in the code."""
_codes: Final[dict[int, CodeType]] = {}
"""The code of these places by its address, which is kept so that no other code gets the same."""
_chains: Final[dict[tuple[int, int, int, int], tuple[Any, Any]]] = {}
"""The chains of frames without a compiled coroutine between them, of an endpoint of an application under a path. Two
chains of equal frames may differ in what is compiled. The values keep the two from being freed, so that no other object
gets the same address."""


async def check_frames(frame: FrameType, end: CodeType, scope: Scope) -> None:
    """Make sure that a response may return now, and be sent later.

    Args:
        frame: The frame that awaits the response.
        end: The code of the server's coroutine function that awaits the application.
        scope: The request's scope.

    Raises:
        NotParked: Something would run at the wrong time.
    """
    found = walk(frame, end, _known)
    if not isinstance(found, int):
        _examine(frame, end)
        found = walk(frame, end, _known)
        assert isinstance(found, int), "each frame was found to be harmless"
    app, endpoint = scope.get("app"), scope.get("endpoint")
    chain = id(app), id(endpoint), hash(scope.get("root_path")), found
    if chain not in _chains:
        if not await _has_frames():
            raise NotParked(
                "a coroutine between it and the server is compiled, and so can't be looked at",
                "leave it so, because it may work after the application",
            )
        if len(_chains) >= _MOST_CHAINS:
            _chains.clear()
        if app is not None:
            _chains[chain] = app, endpoint
    for name in ("fastapi_inner_astack", "fastapi_middleware_astack"):
        if any(not _is_fastapis_own(callback, scope) for callback in _callbacks(scope.get(name))):
            raise NotParked(
                "a dependency with `yield` is closed after the response",
                "leave it so, or close the dependency before the response, from FastAPI 0.121 on: "
                'Depends(..., scope="function")',
            )


def _examine(frame: FrameType | None, end: CodeType) -> None:
    """Look at the code of all frames up to the server's."""
    outer = frame
    while outer is not None and outer.f_code is not end:
        outer = outer.f_back
    is_reached = outer is not None
    while frame is not None and frame is not outer:
        code, place = frame.f_code, place_of(frame)
        if place not in _known:
            if len(_known) >= _MOST:
                _known.clear()
                _codes.clear()
                _chains.clear()
            _codes[id(code)] = code
            _known[place] = _is_harmless(code, frame.f_lasti) or _is_finishing(frame)
        if not _known[place]:
            is_coroutine = code.co_flags & CO_COROUTINE
            if is_coroutine or is_reached:
                raise NotParked(
                    f"{_name(frame)} works after the application (line {frame.f_lineno} of {code.co_filename})",
                    "leave it so, because that would come too early",
                )
            break
        frame = frame.f_back
    if not is_reached:
        raise NotParked("another task runs the application", "leave it so, because that task may be waited for")


def _is_harmless(code: CodeType, at: int) -> bool:
    """Return whether a coroutine only returns after the `await` at the offset `at`."""
    instructions = list(dis.get_instructions(code))
    places = {instruction.offset: index for index, instruction in enumerate(instructions)}
    index = max(index for offset, index in places.items() if offset <= at)
    # Up to CPython 3.12, the offset may be that of the next instruction.
    is_awaiting = any(instruction.opname in _AWAIT for instruction in instructions[max(index - 1, 0) : index + 1])
    if not code.co_flags & CO_COROUTINE or not is_awaiting:
        return False
    while instructions[index].opname in _HARMLESS:
        index += 1
        if instructions[index].opname == "JUMP_FORWARD":  # a jump backwards is a loop
            index = places[instructions[index].argval]
    return instructions[index].opname in ("RETURN_VALUE", "RETURN_CONST")


def _is_finishing(frame: FrameType) -> bool:
    """Return whether the frame's work after the response, which it awaits now, is known to be harmless."""
    name = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
    # FastAPI's function awaits the handler too, and has no response then.
    return name in _FINISHING and (_FINISHING[name] != "fastapi_inner_astack" or "response" in frame.f_locals)


def _callbacks(stack: Any) -> Iterator[Any]:
    return (callback for _, callback in getattr(stack, "_exit_callbacks", ()))


def _is_fastapis_own(callback: Any, scope: Scope) -> bool:
    """Return whether `callback` closes nothing: FastAPI adds it with the first dependency that it closes elsewhere."""
    kind = type(getattr(callback, "__self__", None))
    if (kind.__module__.partition(".")[0], kind.__name__) == ("anyio", "CancelScope"):
        return True
    scopes = scope.get("fastapi_async_cleanup_scopes")
    return scopes is not None and getattr(callback, "__wrapped__", None) == scopes.pop


async def _has_frames() -> bool:
    """Return whether the task awaits nothing but coroutines of Python. Its caller must have been found harmless."""
    task = asyncio.current_task()
    assert task is not None
    waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def look() -> None:
        awaited: Any = task.get_coro()
        while type(awaited) is CoroutineType and awaited.cr_code is not _has_frames.__code__:
            awaited = awaited.cr_await
        if not waiter.done():
            waiter.set_result(type(awaited) is CoroutineType)

    asyncio.get_running_loop().call_soon(look)
    return await waiter


def _name(frame: FrameType) -> str:
    """Return the name of a middleware by one of its frames."""
    owner = frame.f_locals.get("self")
    if owner is not None:
        return f"{type(owner).__module__}.{type(owner).__qualname__}"
    name = frame.f_code.co_qualname.partition(".<locals>")[0].removesuffix(".__call__")
    return f"{frame.f_globals.get('__name__', '?')}.{name}"
