"""Patterns of paths: `*` is one segment, `**` any number of them."""

__all__ = ["matches"]


def matches(pattern: str, path: str) -> bool:
    """Whether the path matches the pattern. Takes no longer than the product of their lengths."""
    segments = path.split("/")
    reached = {0}
    """How many segments may be matched by what was seen of the pattern."""
    for part in pattern.split("/"):
        if part == "**":
            reached = set(range(min(reached), len(segments) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(segments) and part in ("*", segments[at])}
        if not reached:
            return False
    return len(segments) in reached
