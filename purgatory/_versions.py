"""Values with versions by key, and the waits until one of many keys is newer, or until a value satisfies a predicate.

Long polls of configurations are built on this: a client sends the versions that it has seen, and gets an answer when
one of them is old. Without this, each key of each client takes a task and an event.

All versions come from one counter. So a wait for many keys is an operation with one number, the latest version at its
start: each key that is set later has a higher version. And a deleted key leaves nothing behind, because when it is set
again its version is higher than all earlier ones. A version is issued in the step in which its value is stored.

A set tries the waits of its keys, in the same call, with the value that it sets. So a wait sees each value that is set
while it waits, even if the value is replaced before its task runs.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, Self, TypeVar

from purgatory._core.operation import DelayedOperation
from purgatory._core.purgatory import DelayedOperationPurgatory
from purgatory._loop.arguments import check_callback, check_count
from purgatory._loop.closing import Closing
from purgatory._loop.slices import ExitRequests

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Current(Generic[V]):
    """The version and the value of a key."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now: tuple[int, V] | None = None
        """Replaced as a whole. `None` until the key is set for the first time."""


class DelayedChange(DelayedOperation[dict[K, tuple[int, V]]], Generic[K, V]):
    """Waits until one of its keys is set. The result maps the newer keys to their versions and values."""

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
    """Waits until a key has a value that satisfies a predicate. The result is its version and the value."""

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
    """Values with versions by key, and waits for newer versions.

        values = VersionedValues()
        change = await values.changed({"routes": 3, "replicas": 0}, timeout=30.0)  # e.g. {"replicas": (4, 2)}
        values.set("replicas", 2)  # elsewhere

    A key that was never set, or was deleted, has version 0. A key without a value takes no memory if no operation waits
    for it, except for entries of finished operations until the next purge. A close refuses new waits, and keeps the
    values. It belongs to one event loop and its thread, like every purgatory. Use it as an async context manager, or
    call `aclose` at the end.
    """

    __slots__ = ("__weakref__", "_announced", "_values", "_version", "purgatory")

    def __init__(self, version: int = 0, purgatory: DelayedOperationPurgatory | None = None) -> None:
        """Start without values.

        Args:
            version: The version to count from. If clients keep versions across a restart of the server, pass
                `time.time_ns() // 1000`, so that all versions from before the restart count as old.
            purgatory: The purgatory that holds the waits. It must not contain other operations. By default, a new one.

        Raises:
            ValueError: `version` is negative.
            TypeError: `version` is not an `int`, or `purgatory` is not a `DelayedOperationPurgatory`.
        """
        check_count("version", version, 0)
        if purgatory is None:
            purgatory = DelayedOperationPurgatory("versions")
        if not isinstance(purgatory, DelayedOperationPurgatory):
            raise TypeError(f"purgatory must be a DelayedOperationPurgatory, not {purgatory!r}")
        self._version = version
        """The latest version that was issued."""
        self._values: dict[K, _Current[V]] = {}
        """The keys that have a value, and those that are being set for the first time."""
        self._announced: Mapping[K, tuple[int, V]] = {}
        """The versions and values of the set whose waits are being tried, the innermost one if sets nest."""
        self.purgatory: DelayedOperationPurgatory = purgatory
        """The purgatory that holds the waits. Use it for statistics, metrics and `cancel_for_key(key)`."""

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
        """Return the version and the value of `key`, or `(0, None)` if it has no value."""
        current = self._values.get(key)
        return (0, None) if current is None or current.now is None else current.now

    def set(self, key: K, value: V) -> int:
        """Set the value of a key, and complete the waits that it satisfies. Return the new version.

        The cost grows only with the operations waiting for that key, because each of them is tried in this call.

        Raises:
            TypeError: `key` is not hashable.
            PurgatoryMisuse: The purgatory belongs to another event loop or thread.
        """
        self.purgatory.check_thread("values.set(key, value)")
        return self._change({key: value})

    def update(self, values: Mapping[K, V]) -> None:
        """Set the values of several keys, and then complete the waits that they satisfy. Raises as `set`.

        A wait for several of these keys gets all of them, while with one `set` after the other it would get only the
        first. The cost is the same.
        """
        self.purgatory.check_thread("values.update(values)")
        if not isinstance(values, Mapping):
            raise TypeError(f"values must be a mapping of keys to values, not {values!r}")
        self._change(dict(values))

    def delete(self, key: K) -> bool:
        """Forget the value of `key`. Return whether it had one. Raises as `set`.

        This doesn't wake anyone. If clients must learn that a key is gone, set a value that says so first.
        """
        self.purgatory.check_thread("values.delete(key)")
        try:
            del self._values[key]
        except KeyError:
            return False
        return True

    def changed(self, seen: Mapping[K, int], timeout: float | None) -> DelayedOperation[dict[K, tuple[int, V]]]:
        """Wait until one of several keys has a newer version. The wait begins with this call, awaited or not.

        A change between two calls is not missed if you pass the versions from the first result to the second call.

        Args:
            seen: A mapping of keys to the versions that were seen last, 0 for none.
            timeout: Seconds to wait at most. `None` means no deadline.

        Returns:
            One operation for all keys, whose result maps the newer keys to their versions and values. It is done at
            once if there are any. At a deadline or a close, the result is an empty `dict`.

        Raises:
            ValueError: `seen` is empty or contains a version that was never issued, or `timeout` is negative, NaN or
                infinite.
            TypeError: `seen` is not a mapping to versions, or `timeout` is not a number.
            PurgatoryClosed: The purgatory accepts no more waits.
            PurgatoryFull: `max_pending` waits are pending.
        """
        if not isinstance(seen, Mapping):
            raise TypeError(f"seen must be a mapping of keys to versions, not {seen!r}")
        if not seen:
            raise ValueError("seen must not be empty")
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
        """Wait until a key has a value that satisfies a predicate. The wait begins with this call, awaited or not.

        The present value counts, and so does each value that is set from now on, even if it is replaced before the
        awaiting task runs.

        Args:
            key: The key to wait for.
            predicate: Called with each value. If it raises, the operation fails.
            timeout: Seconds to wait at most. `None` means no deadline.

        Returns:
            An operation whose result is the version and the value. At a deadline or a close, it is `None`.

        Raises:
            ValueError: `timeout` is negative, NaN or infinite.
            TypeError: `key` is not hashable, `predicate` is not callable or is `async`, or `timeout` is not a number.
            PurgatoryClosed: The purgatory accepts no more waits.
            PurgatoryFull: `max_pending` waits are pending.
        """
        check_callback("predicate", predicate)
        return self.purgatory.try_complete_else_watch(DelayedUntil(self, key, predicate, timeout), (key,))

    async def aclose(self) -> None:
        """Refuse new waits and complete the pending ones, in slices. A second call does nothing."""
        await self.purgatory.aclose()

    def close(self) -> None:
        """Do the same as `aclose`, but in one go."""
        self.purgatory.close()

    def _change(self, values: dict[K, V]) -> int:
        """Set values, and try the waits of their keys. Return the last version."""
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
        """Return the version and value that a wait created at version `since` must see.

        That is the value that is being announced, even if a later set inside the announcement has replaced it already.
        """
        change = self._announced.get(key)
        if change is not None and change[0] > since:
            return change
        current = self._values.get(key)
        return None if current is None else current.now

    def _newer(self, keys: tuple[K, ...], since: int) -> dict[K, tuple[int, V]]:
        """Return the versions and values of the keys that were set after the version `since`."""
        if self._version == since:
            return {}
        return {key: now for key in keys if (now := self._now(key, since)) is not None and now[0] > since}


def _check_version(key: object, version: int, latest: int) -> None:
    if not isinstance(version, int):
        raise TypeError(f"version of {key!r} must be an int, not {version!r}")
    if not 0 <= version <= latest:
        raise ValueError(f"version of {key!r} must be between 0 and {latest} (the latest issued), not {version!r}")
