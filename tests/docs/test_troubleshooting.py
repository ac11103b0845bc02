"""The messages that the page explains are those that users get."""

import asyncio
import re
from collections.abc import Callable

import pytest

from purgatory import Delay, DelayedOperation, DelayedOperationPurgatory, VirtualClock
from tests.support.paths import ROOT

PAGE = (ROOT / "purgatory" / "TROUBLESHOOTING.md").read_text()


class Liar(DelayedOperation[None]):
    def try_complete(self) -> bool:
        return True

    def on_complete(self) -> None:
        pass


class Never(DelayedOperation[None]):
    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        pass


def hand_over_twice(purgatory: DelayedOperationPurgatory) -> None:
    delay = purgatory.try_complete_else_watch(Delay(1.0), ["key"])
    purgatory.try_complete_else_watch(delay, ["key"])


def call_from_another_thread(purgatory: DelayedOperationPurgatory) -> None:
    async def main() -> None:
        purgatory = DelayedOperationPurgatory()
        purgatory.wait_for(lambda: False, "key")
        await asyncio.to_thread(purgatory.check_and_complete, "key")

    asyncio.run(main())


def use_on_two_loops(purgatory: DelayedOperationPurgatory) -> None:
    purgatory = DelayedOperationPurgatory()

    async def main() -> None:
        purgatory.wait_for(lambda: False, "key")

    asyncio.run(main())
    asyncio.run(main())


def make_a_task(purgatory: DelayedOperationPurgatory) -> None:
    async def main() -> None:
        asyncio.create_task(Delay(1.0))  # type: ignore[arg-type]  # noqa: RUF006

    asyncio.run(main())


MESSAGES: dict[str, Callable[[DelayedOperationPurgatory], object]] = {
    "keys must be an iterable of keys, not the str": lambda p: p.try_complete_else_watch(Delay(1.0), "key"),
    "a timeout is passed by name": lambda p: p.wait_for(lambda: False, "key", 30.0),
    "was already handed to a purgatory": hand_over_twice,
    "needs a key or a timeout": lambda p: p.try_complete_else_watch(Never(None), []),
    "returned true, but did not force_complete()": lambda p: p.try_complete_else_watch(Liar(1.0), ["key"]).result(),
    "a coroutine was expected": make_a_task,
    "must be called from its event loop's thread": call_from_another_thread,
    "belongs to an event loop that is closed": use_on_two_loops,
    "no running asyncio event loop": lambda p: DelayedOperationPurgatory().wait_for(lambda: False, "key"),
}


@pytest.mark.parametrize("message", MESSAGES)
def test_message_is_what_users_get(message: str) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError), match=re.escape(message)):
        MESSAGES[message](DelayedOperationPurgatory(clock=VirtualClock()))


def test_each_message_of_a_heading_is_shown() -> None:
    headings = re.findall(r"^## `([^`]* [^`]*)`$", PAGE, re.MULTILINE)
    assert {heading for heading in headings if not heading.startswith("ImportError")} == set(MESSAGES)
    assert len(re.findall(r"^## ", PAGE, re.MULTILINE)) >= 14
