"""A request waits in one process, and the state that it waits for changes in another.

[Its guide](README.md) goes through it.
"""
