"""A job queue with workers that wait: `queue` is the queue, `__main__` a demonstration.

[Its guide](README.md) goes through it.
"""
