"""The fixtures of the examples' tests: the brokers are those of the relay's tests."""

from tests.relay.conftest import postgres, redis

__all__ = ["postgres", "redis"]
