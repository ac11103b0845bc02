"""Values with versions by key, and the waits until one of many keys is newer, or until a value has a state.

Long polls of configurations are built on this: a client sends the versions that it has seen, and is answered when one
of them is old. By hand, each key of each client takes a task and an event.

All versions come from one counter. So a wait for many keys is an operation with one number, the last version that was
given before it: each key that is set after that has a higher one. And a key that was deleted leaves nothing behind,
for when it is set again its version is higher than all that were seen of it. A version is given in the same step in
which its value is stored.

A set tries the waits of its keys, in the same call, with the value that it sets. A wait therefore sees each value that
is set while it waits, also one that is replaced before its task runs, or in the middle of the set.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, Self, TypeVar

from purgatory._core.operation import DelayedOperation
from purgatory._core.purgatory import DelayedOperationPurgatory
from purgatory._loop.arguments import check_callback, check_count
from purgatory._loop.closing import Closing
from purgatory._loop.slices import ExitRequests

__all__ = ["VersionedValues"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Current(Generic[V]):
    """The version and the value of a key."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now: tuple[int, V] | None = None
        """Replaced as a whole. `None` before it is set for the first time."""


class DelayedChange(DelayedOperation[dict[K, tuple[int, V]]], Generic[K, V]):
    """Waits until one of its keys is set. Yields the versions and values of those that are newer."""

    __slots__ = ("__weakref__", "_found", "_keys", "_of", "_since")

    def __init__(
        self,
        of: "VersionedValues[K, V]",
        keys: tuple[K, ...],
        since: int,
        found: dict[K, tuple[int, V]],
        timeout: float | None,
    ) -> None:
        super().__init__(timeout)
        self._of = of
        self._keys = keys
        self._since = since
        self._found = found or None  # no empty one for each wait

    def try_complete(self) -> bool:
        found = self._found or self._of._newer(self._keys, self._since)
        if not found:
            return False
        self._found = found
        return self.force_complete()

    def on_complete(self) -> dict[K, tuple[int, V]]:
        return self._found or self._of._newer(self._keys, self._since)


class DelayedUntil(DelayedOperation[tuple[int, V] | None], Generic[K, V]):
    """Waits until a key has a value that satisfies a predicate. Yields its version and the value."""

    __slots__ = ("__weakref__", "_found", "_key", "_of", "_predicate", "_since")

    def __init__(
        self, of: "VersionedValues[K, V]", key: K, predicate: Callable[[V], object], timeout: float | None
    ) -> None:
        super().__init__(timeout)
        self._of = of
        self._key = key
        self._predicate = predicate
        self._since = of._version
        self._found: tuple[int, V] | None = None

    def try_complete(self) -> bool:
        now = self._of._now(self._key, self._since)
        if now is None or not self._predicate(now[1]):
            return False
        self._found = now
        return self.force_complete()

    def on_complete(self) -> tuple[int, V] | None:
        return self._found


class VersionedValues(Closing, Generic[K, V]):
    """Values with versions by key, and waits for newer ones.

        values = VersionedValues()
        change = await values.changed({"routes": 3, "replicas": 0}, timeout=30.0)  # {'replicas': (4, 2)}, for instance
        values.set("replicas", 2)                                                 # elsewhere

    A key that was never set, or was deleted, has version 0. A key without a value that no operation waits for takes no
    memory, but for entries of finished operations until the next purge. A close refuses further waits, and leaves the
    values. Like every purgatory it belongs to one event loop and its thread. It is an async context manager, or call
    `aclose`.
    """

    __slots__ = ("__weakref__", "_announced", "_values", "_version", "purgatory")

    def __init__(self, version: int = 0, purgatory: DelayedOperationPurgatory | None = None) -> None:
        """Give versions above `version`. `purgatory` holds the waits, and no other operations; by default it is a new
        one.

        A server whose clients outlive it begins each time with a higher `version`, such as `time.time_ns() // 1000`.
        All that its clients have seen is old then. Raises `TypeError` or `ValueError` unless `version` is an `int` that
        is not negative, `TypeError` if `purgatory` is not one.
        """
        check_count("version", version, 0)
        if purgatory is None:
            purgatory = DelayedOperationPurgatory("versions")
        if not isinstance(purgatory, DelayedOperationPurgatory):
            raise TypeError(f"purgatory must be a DelayedOperationPurgatory, not {purgatory!r}")
        self._version = version
        """The last version that was given."""
        self._values: dict[K, _Current[V]] = {}
        """The keys that have a value, and those that are being set for the first time."""
        self._announced: Mapping[K, tuple[int, V]] = {}
        """The versions and values of the set whose waits are being tried; the innermost, if it is one in another."""
        self.purgatory: DelayedOperationPurgatory = purgatory
        """The purgatory that holds the waits: for its statistics, metrics and listeners, and `cancel_for_key(key)`."""

    def _purgatory_describe(self) -> str:
        return f"{self.purgatory.name!r} keys={len(self._values)} waiting={self.num_waiting}"

    async def __aenter__(self) -> Self:
        await self.purgatory.__aenter__()
        return self

    @property
    def num_waiting(self) -> int:
        """The exact number of waits."""
        return self.purgatory.num_delayed

    def get(self, key: K) -> tuple[int, V | None]:
        """The version and the value of `key`; `(0, None)` if it has none. Raises `TypeError` if it is not hashable."""
        current = self._values.get(key)
        return (0, None) if current is None or current.now is None else current.now

    def set(self, key: K, value: V) -> int:
        """Set the value of `key`, and complete the waits that it satisfies. Returns its version.

        Costs by the operations that wait for `key`: each is tried in this call. Raises `TypeError` if `key` is not
        hashable.
        """
        self.purgatory.check_thread("values.set(key, value)")
        return self._change({key: value})

    def update(self, values: Mapping[K, V]) -> None:
        """Set the values of several keys, and then complete the waits that they satisfy.

        A wait for several of these keys yields all of them, where after a `set` of each it would yield the first. Costs
        as a `set` of each. Raises `TypeError` if `values` is not a mapping.
        """
        self.purgatory.check_thread("values.update(values)")
        if not isinstance(values, Mapping):
            raise TypeError(f"values must be a mapping of keys to values, not {values!r}")
        self._change(dict(values))

    def delete(self, key: K) -> bool:
        """Forget the value of `key`. Returns whether it had one. Operations that wait for `key` go on waiting.

        Raises `TypeError` if `key` is not hashable.
        """
        self.purgatory.check_thread("values.delete(key)")
        try:
            del self._values[key]
        except KeyError:
            return False
        return True

    def changed(self, seen: Mapping[K, int], timeout: float | None) -> DelayedOperation[dict[K, tuple[int, V]]]:
        """Wait until one of the keys of `seen` has a newer version than that, for at most `timeout` seconds.

        `seen` has the versions that were seen last, 0 for none; a `timeout` of `None` is no deadline. Waits from this
        call on, whether the operation that it returns is awaited or not: one operation for all keys. It yields the
        versions and values of the newer ones, at once if there are any. If the deadline comes first, or the purgatory
        is closed, it yields an empty `dict`. A change between two calls is not missed if the second one has the
        versions that the first one has yielded.

        Raises `TypeError` if `seen` is not a mapping or a version is not an `int`, `ValueError` if `seen` is empty or
        has a version that was never given, both for a bad timeout, `PurgatoryClosed` and `PurgatoryFull`.
        """
        if not isinstance(seen, Mapping):
            raise TypeError(f"seen must be a mapping of keys to versions, not {seen!r}")
        if not seen:
            raise ValueError("seen must have at least one key")
        since = self._version
        found: dict[K, tuple[int, V]] = {}
        for key, version in seen.items():
            if type(version) is not int or not 0 <= version <= since:
                _check_version(key, version, since)
            current = self._values.get(key)
            now = None if current is None else current.now
            if now is not None and now[0] > version:
                found[key] = now
        keys = tuple(seen)
        return self.purgatory.try_complete_else_watch(DelayedChange(self, keys, since, found, timeout), keys)

    def until(
        self, key: K, predicate: Callable[[V], object], timeout: float | None
    ) -> DelayedOperation[tuple[int, V] | None]:
        """Wait until `predicate(value)` is true for a value of `key`, for at most `timeout` seconds.

        Looks at the value now, and at each that is set from this call on: one that comes and goes is not missed, even
        before the awaiting task runs. The operation yields the version and the value; `None` if the deadline comes
        first, or the purgatory is closed. An exception of `predicate` makes it fail.

        Raises `TypeError` if `key` is not hashable, `predicate` is not callable or is `async`, `ValueError` or
        `TypeError` for a bad timeout, `PurgatoryClosed` and `PurgatoryFull`.
        """
        check_callback("predicate", predicate)
        return self.purgatory.try_complete_else_watch(DelayedUntil(self, key, predicate, timeout), (key,))

    async def aclose(self) -> None:
        """Refuse further waits and complete all pending ones, in slices. Harmless when repeated."""
        await self.purgatory.aclose()

    def close(self) -> None:
        """As `aclose`, in one go."""
        self.purgatory.close()

    def _change(self, values: dict[K, V]) -> int:
        """Set values, and try the waits of their keys. Returns the last version."""
        changes: dict[K, tuple[int, V]] = {}
        fault: Exception | None = None
        try:
            for key, value in values.items():
                current = self._values.get(key)
                if current is None:
                    current = self._values.setdefault(key, _Current())
                self._version += 1
                changes[key] = current.now = (self._version, value)
        except Exception as exception:  # of the key's own __hash__ or __eq__
            fault = exception  # raised when the waits of the keys that were set have been tried
        version = self._version
        exits = ExitRequests()
        outer, self._announced = self._announced, changes
        try:
            for key in changes:
                with exits:
                    try:
                        self.purgatory.check_and_complete(key)
                    except Exception as exception:  # of the key's own __hash__ or __eq__
                        fault = fault or exception
        finally:
            self._announced = outer
        exits.raise_first()
        if fault is not None:
            raise fault
        return version

    def _now(self, key: K, since: int) -> tuple[int, V] | None:
        """The version and value of `key` that a wait looks at which came when `since` was the last version.

        They are those that are being announced, even if a later set, from inside that, has replaced them already.
        """
        change = self._announced.get(key)
        if change is not None and change[0] > since:
            return change
        current = self._values.get(key)
        return None if current is None else current.now

    def _newer(self, keys: tuple[K, ...], since: int) -> dict[K, tuple[int, V]]:
        """The versions and values of those of `keys` that were set after `since`."""
        if self._version == since:
            return {}
        return {key: now for key in keys if (now := self._now(key, since)) is not None and now[0] > since}


def _check_version(key: object, version: int, latest: int) -> None:
    if not isinstance(version, int):
        raise TypeError(f"the version seen of {key!r} must be an int, not {version!r}")
    if not 0 <= version <= latest:
        raise ValueError(f"the version seen of {key!r} must be from 0 to {latest}, the last one given, not {version!r}")
