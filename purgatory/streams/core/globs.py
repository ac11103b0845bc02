"""Patterns of paths: `*` is one segment, `**` any number of them."""

from collections.abc import Iterable
from typing import Final

MAX_SEGMENTS: Final = 64
"""Segments of a pattern and of a new stream's path, at most: each append looks at both."""
_PATHS: Final = 1000
"""Paths whose patterns are remembered."""


class Glob:
    """A pattern. To match it costs one step for each segment of the path, however many `**` it has.

    The steps are those of a machine that may be in several states at once. In state `i` it has seen what the first `i`
    segments of the pattern match, where `**` is not counted as one. The states are the bits of an integer.
    """

    __slots__ = ("_end", "_literal", "_repeat", "_star", "num_segments", "prefix")

    def __init__(self, pattern: str) -> None:
        self._literal: dict[str, int] = {}
        """By segment: the states in which it leads to the next one."""
        self._star = 0
        """The states in which any segment does."""
        self._repeat = 0
        """The states in which any segment leads to the same one."""
        state = 1
        parts = pattern.split("/")
        for part in parts:
            if part == "**":
                self._repeat |= state
                continue
            if part == "*":
                self._star |= state
            else:
                self._literal[part] = self._literal.get(part, 0) | state
            state <<= 1
        self._end = state
        self.num_segments = state.bit_length() - 1 + self._repeat.bit_count()
        """How many it has, where `**` that follow each other are one."""
        wildcard = next((at for at, part in enumerate(parts) if part in ("*", "**")), len(parts))
        self.prefix = "/".join(parts[:wildcard])
        """The segments before the first wildcard: each path that matches is this, or is below it."""

    def matches(self, path: str) -> bool:
        """Return whether the path matches the pattern."""
        return self.matches_segments(path.split("/"))

    def matches_segments(self, segments: Iterable[str]) -> bool:
        """Return whether the path that has these segments matches the pattern."""
        states = 1
        for segment in segments:
            next_states = states & (self._star | self._literal.get(segment, 0))
            states = next_states << 1 | states & self._repeat
            if not states:
                return False
        return bool(states & self._end)


class Patterns:
    """The patterns of all subscriptions, compiled once, and which of them match the last paths."""

    def __init__(self) -> None:
        self._given: dict[str, str | None] = {}
        self._globs: dict[str, Glob] = {}
        self._found: dict[str, tuple[str, ...]] = {}

    def replace(self, patterns: Iterable[tuple[str, str | None]]) -> None:
        """These are all patterns now, by the ids of their subscriptions."""
        given = dict(patterns)
        if given == self._given:
            return
        before, globs = self._given, self._globs
        self._given = given
        self._globs = {
            name: globs[name] if before.get(name) == pattern else Glob(pattern)
            for name, pattern in given.items()
            if pattern is not None
        }
        self._found.clear()

    def matching(self, path: str) -> tuple[str, ...]:
        """Return the ids of the subscriptions whose pattern matches the path."""
        if not self._globs:
            return ()
        found = self._found.get(path)
        if found is None:
            segments = path.split("/")
            found = tuple(name for name, glob in self._globs.items() if glob.matches_segments(segments))
            if len(self._found) >= _PATHS:
                del self._found[next(iter(self._found))]
            self._found[path] = found
        return found
