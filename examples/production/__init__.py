"""A service must not run out of memory, must show how long its requests wait, and must not pause.

[Its guide](README.md) goes through it.
"""
