"""The long-poll host of Ray Serve, rebuilt on `VersionedValues`, and the cases that Ray's own tests have for it.

Ray's `LongPollHost` tells its clients of new configurations. A client sends the version of each key that it has, -1 for
none, and is answered with the keys that differ, at once or when one changes. It holds a task and an `asyncio.Event` for
each key of each client. (https://github.com/ray-project/ray, python/ray/serve/_private/long_poll.py and
python/ray/serve/tests/test_long_poll.py)
"""

import asyncio
import inspect
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import Enum, auto
from typing import Any, Final, NamedTuple

import pytest

from purgatory import Clock, DelayedOperationPurgatory, VersionedValues
from tests.support.operations import FaultLog, turn

Key = str | tuple[str, str]


class LongPollState(Enum):
    TIME_OUT = auto()


class UpdatedObject(NamedTuple):
    object_snapshot: Any
    snapshot_id: int


class LongPollHost:
    """Tells clients of the keys that have changed."""

    def __init__(self, timeout: tuple[float, float] = (30.0, 60.0), clock: Clock | None = None) -> None:
        # Versions are other ones in each life of the host.
        self.values: VersionedValues[Key, Any] = VersionedValues(
            time.time_ns() // 1000, DelayedOperationPurgatory("long polls", clock=clock)
        )
        self._timeout = timeout

    def notify_changed(self, updates: Mapping[Key, Any]) -> None:
        """Set the objects of some keys, and answer their clients."""
        self.values.update(updates)

    def remove_keys(self, keys: Iterable[Key]) -> None:
        """Forget some keys, and answer their clients with what else has changed."""
        for key in keys:
            self.values.delete(key)
            for client in self.values.purgatory.watching(key):
                client.force_complete()

    async def listen_for_change(
        self, keys_to_snapshot_ids: Mapping[Key, int]
    ) -> LongPollState | dict[Key, UpdatedObject]:
        """Yield the keys whose version is another than the client's, as soon as there are any."""
        if not keys_to_snapshot_ids:
            await asyncio.sleep(1.0)
            return {}
        # A version of another life, of a removed key, or -1, is none.
        seen = {
            key: version if version == self.values.get(key)[0] else 0 for key, version in keys_to_snapshot_ids.items()
        }
        # Random, so that clients that have come together do not come again together.
        change = self.values.changed(seen, random.uniform(*self._timeout))
        found = await change
        if change.expired():
            return LongPollState.TIME_OUT
        return {key: UpdatedObject(value, version) for key, (version, value) in found.items()}


async def poll(host: LongPollHost, listeners: Mapping[Key, Callable[[Any], object]]) -> None:
    """A client: call the listener of each key with each object that it is answered with, for ever."""
    seen: dict[Key, int] = dict.fromkeys(listeners, -1)
    while True:
        updates = await host.listen_for_change(seen)
        if isinstance(updates, dict):
            for key, (snapshot, version) in updates.items():
                seen[key] = version
                listeners[key](snapshot)


KEYS: Final[list[Key]] = ["key_1", "key_2"]


async def ask(host: LongPollHost, seen: Mapping[Key, int]) -> dict[Key, UpdatedObject]:
    """The answer to a client, which is no timeout."""
    updates = await host.listen_for_change(seen)
    assert isinstance(updates, dict)
    return updates


def versions(updates: Mapping[Key, UpdatedObject]) -> dict[Key, int]:
    return {key: update.snapshot_id for key, update in updates.items()}


async def waiting(answer: Awaitable[Any]) -> "asyncio.Task[Any]":
    """A client's task, which waits."""
    task = asyncio.ensure_future(answer)
    await turn()
    assert not task.done()
    return task


@pytest.fixture
def host() -> LongPollHost:
    return LongPollHost()


def test_the_host_has_less_than_60_lines() -> None:
    assert len(inspect.getsource(LongPollHost).splitlines()) < 60


async def test_nothing_is_left_of_a_client_that_timed_out() -> None:
    host = LongPollHost((0.001, 0.001))
    host.notify_changed({"key_1": 999})
    updates = await ask(host, {"key_1": -1})
    assert updates["key_1"].object_snapshot == 999
    assert await host.listen_for_change(versions(updates)) is LongPollState.TIME_OUT
    assert host.values.num_waiting == 0


async def test_outdated_keys_are_answered_at_once_and_others_when_they_change(host: LongPollHost) -> None:
    host.notify_changed({"key_1": 999})
    host.notify_changed({"key_2": 999})
    updates = await ask(host, {"key_1": -1, "key_2": -1})
    assert {key: update.object_snapshot for key, update in updates.items()} == dict.fromkeys(KEYS, 999)
    client = await waiting(host.listen_for_change(versions(updates)))
    host.notify_changed({"key_2": 999})
    assert (await client).keys() == {"key_2"}


async def test_keys_that_are_set_for_the_first_time_are_answered_together(host: LongPollHost) -> None:
    client = await waiting(host.listen_for_change({"key_1": -1, "key_2": -1}))
    host.notify_changed({"key_1": 123, "key_2": 456, "key_3": 789})
    updates = await client
    assert {key: update.object_snapshot for key, update in updates.items()} == {"key_1": 123, "key_2": 456}


async def test_a_client_of_a_restarted_host_is_answered_at_once(host: LongPollHost) -> None:
    host.notify_changed({"timer": 1})
    timer = (await ask(host, {"timer": -1}))["timer"]
    restarted = LongPollHost()
    restarted.notify_changed({"timer": 2})
    new_timer = (await ask(restarted, {"timer": timer.snapshot_id}))["timer"]
    assert new_timer.object_snapshot == 2
    assert new_timer.snapshot_id > timer.snapshot_id + 1


@pytest.mark.parametrize("version", [-1, 7, 10**30])
async def test_any_other_version_than_the_hosts_is_an_old_one(host: LongPollHost, version: int) -> None:
    host.notify_changed({"key_1": 1})
    assert (await ask(host, {"key_1": version, "unknown": version})).keys() == {"key_1"}


async def test_listeners_of_a_client_are_called_with_each_change(host: LongPollHost) -> None:
    host.notify_changed({"key_1": 100})
    host.notify_changed({"key_2": 999})
    heard: dict[Key, Any] = {}
    client = asyncio.ensure_future(
        poll(host, {"key_1": lambda value: heard.update(key_1=value), "key_2": lambda value: heard.update(key_2=value)})
    )
    await turn()
    assert heard == {"key_1": 100, "key_2": 999}
    host.notify_changed({"key_2": 1999})
    await turn()
    assert heard == {"key_1": 100, "key_2": 1999}
    client.cancel()
    await asyncio.wait([client])
    assert host.values.num_waiting == 0


async def test_no_change_is_lost_between_two_polls(host: LongPollHost) -> None:
    heard: list[int] = []
    client = asyncio.ensure_future(poll(host, {"key": heard.append}))
    for number in range(100):
        host.notify_changed({"key": number})
        if number % 3 == 0:
            await turn()
    await turn()
    await turn()
    client.cancel()
    await asyncio.wait([client])
    assert heard == sorted(set(heard))
    assert heard[-1] == 99


async def test_a_change_answers_the_clients_of_its_key_alone(host: LongPollHost) -> None:
    seen: list[dict[Key, int]] = [{"key_1": -1}, {"key_2": -1}, {"key_1": -1, "key_2": -1}]
    one, two, both = [await waiting(host.listen_for_change(each)) for each in seen]
    assert host.values.num_waiting == 3
    host.notify_changed({"key_1": 1})
    assert (await one).keys() == (await both).keys() == {"key_1"}
    assert (two.done(), host.values.num_waiting) == (False, 1)
    two.cancel()
    await asyncio.wait([two])
    assert host.values.num_waiting == 0


def test_timeouts_are_spread(clock: FaultLog) -> None:
    host = LongPollHost((30.0, 60.0), clock)
    timeouts: list[float] = []
    host.values.purgatory.add_listener(lambda finished: timeouts.append(finished.timeout or 0.0))

    async def listen() -> None:
        clients = [await waiting(host.listen_for_change({"key_1": -1})) for _ in range(100)]
        clock.advance(29.9)
        assert host.values.num_waiting == 100
        clock.advance(30.2)
        assert await asyncio.gather(*clients) == [LongPollState.TIME_OUT] * 100

    asyncio.run(listen())
    assert len({int(timeout) for timeout in timeouts}) > 10, "of 30 seconds"


async def test_a_client_without_keys_is_answered_with_nothing(host: LongPollHost) -> None:
    assert await host.listen_for_change({}) == {}


async def test_a_removed_key_is_not_answered_any_more() -> None:
    host = LongPollHost((0.001, 0.001))
    key = ("DEPLOYMENT_CONFIG", "app1:deploy1")
    host.notify_changed({key: "v1"})
    seen = versions(await ask(host, {key: -1}))
    host.remove_keys([key])
    assert await host.listen_for_change(seen) is LongPollState.TIME_OUT
    assert await host.listen_for_change({key: -1}) is LongPollState.TIME_OUT
    host.notify_changed({key: "v2"})
    assert (await ask(host, seen))[key].object_snapshot == "v2"


async def test_clients_of_a_removed_key_are_answered_without_it(host: LongPollHost) -> None:
    host.notify_changed({"key_1": "v1"})
    client = await waiting(host.listen_for_change(versions(await ask(host, {"key_1": -1}))))
    host.remove_keys(["key_1", "unknown"])
    assert await client == {}
    assert host.values.num_waiting == 0


async def test_a_last_object_reaches_a_client_though_another_key_is_removed_after_it(host: LongPollHost) -> None:
    host.notify_changed({"targets": "running", "config": "v1"})
    seen = versions(await ask(host, {"targets": -1, "config": -1}))
    client = await waiting(host.listen_for_change(seen))
    host.notify_changed({"targets": "deleted"})
    host.remove_keys(["config", "targets"])
    assert {key: update.object_snapshot for key, update in (await client).items()} == {"targets": "deleted"}
