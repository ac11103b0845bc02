"""Clients disappear without closing their connections, and each one left open takes memory and a descriptor.

This TCP server closes connections that have been silent for too long.

    python -m examples.idle_connections [--host 127.0.0.1] [--port 9000] [--timeout 30]

`server` has the server, which echoes all data, and `__main__` the command. [Its guide](README.md) goes through it.
"""
