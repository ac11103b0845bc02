"""Writes that wait for their replicas: `replication` is the log, `__main__` a demonstration.

[Its guide](README.md) goes through it.
"""
