"""A write must not be answered before other machines have it, nor wait forever if one of them is down.

`replication` is the log, `__main__` a demonstration.

[Its guide](README.md) goes through it.
"""
