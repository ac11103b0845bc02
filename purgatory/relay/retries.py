"""Attempts that are repeated until they succeed: to connect to a broker, and to read a state."""

import asyncio
from collections.abc import Callable
from typing import Final

from purgatory._extras import missing

try:
    from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential
except ModuleNotFoundError as _error:
    raise missing(_error, "relay") from None

LONGEST: Final = 5.0
"""The longest pause between two attempts, in seconds."""

_BACK_OFF: Final = wait_random_exponential(multiplier=0.1, max=LONGEST)
"""The pauses: at first up to 0.1 seconds, and each time up to twice as much. They are random so that many processes do
not connect at once."""


def retrying(
    report: Callable[[BaseException, float], object],
    *,
    should_retry: Callable[[], bool] = lambda: True,
    reset_backoff: Callable[[], bool] = lambda: False,
) -> AsyncRetrying:
    """Repeat an attempt while it raises and `should_retry()` is true. Then raise the last exception.

    `report` is called with the exception of an attempt, and the seconds until the next one. If `reset_backoff()` is
    true, because the last attempt worked for a while, the pauses begin small again. A cancelled task makes no further
    attempt, even if the cancellation has become another exception. A callback of the user must run in a task of its
    own. On CPython 3.11 and 3.12, a `TaskGroup` in it may leave its task counted as cancelled forever.
    """

    def wait(state: RetryCallState) -> float:
        if reset_backoff():
            state.attempt_number = 1
        return _BACK_OFF(state)

    def report_failure(state: RetryCallState) -> None:
        assert state.outcome is not None
        exception = state.outcome.exception()
        assert exception is not None
        report(exception, state.upcoming_sleep)

    return AsyncRetrying(
        wait=wait,
        retry=retry_if_exception(lambda exception: not is_cancelled() and _is_failure(exception) and should_retry()),
        before_sleep=report_failure,
        reraise=True,
    )


def is_cancelled() -> bool:
    """Return whether the present task was cancelled, even if the `CancelledError` has become another exception."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _is_failure(exception: BaseException) -> bool:
    """Return whether the attempt has failed. A `CancelledError` of another task is a failure like any other."""
    return isinstance(exception, (Exception, asyncio.CancelledError))
