"""The fixtures of the examples' tests."""

from tests.support.servers import postgres, redis

__all__ = ["postgres", "redis"]
