"""Trying again what has failed, after a while: how a relay treats brokers, and states that cannot be read."""

import asyncio
from collections.abc import Callable
from typing import Final

try:
    from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}: pip install 'asyncio-purgatory[relay]'", name=error.name) from None

__all__ = ["LONGEST", "is_cancelled", "retrying"]

LONGEST: Final = 5.0
"""Seconds between two attempts, at most."""

_BACK_OFF: Final = wait_random_exponential(multiplier=0.1, max=LONGEST)
"""Random, so that many processes do not come at once; up to 0.1 seconds at first, and up to twice as long each time."""


def retrying(
    tell: Callable[[BaseException, float], object],
    *,
    goes_on: Callable[[], bool] = lambda: True,
    afresh: Callable[[], bool] = lambda: False,
) -> AsyncRetrying:
    """Attempts, as long as they raise, and it `goes_on`; then it raises what the last one did.

    `tell` is called with what an attempt has raised, and the seconds until the next one. If the last one is not one
    more of a row of failures, because it did work for a while, the waits begin `afresh`. Who is cancelled attempts
    nothing more, whatever comes of it. What an attempt runs of other people's code has to be a task of its own: on
    CPython 3.11 and 3.12 a `TaskGroup` in there may leave its task counted as cancelled for ever.
    """

    def wait(state: RetryCallState) -> float:
        if afresh():
            state.attempt_number = 1
        return _BACK_OFF(state)

    def tell_of(state: RetryCallState) -> None:
        assert state.outcome is not None
        exception = state.outcome.exception()
        assert exception is not None
        tell(exception, state.upcoming_sleep)

    return AsyncRetrying(
        wait=wait,
        retry=retry_if_exception(lambda exception: not is_cancelled() and _may_pass(exception) and goes_on()),
        before_sleep=tell_of,
        reraise=True,
    )


def is_cancelled() -> bool:
    """Whether somebody has cancelled the present task, even if something else than `CancelledError` came of that."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _may_pass(exception: BaseException) -> bool:
    """Whether it is a failure. A `CancelledError` of somebody else's is one as any other."""
    return isinstance(exception, (Exception, asyncio.CancelledError))
