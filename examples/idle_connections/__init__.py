"""A TCP server that closes connections which have been silent for too long.

    python -m examples.idle_connections [--host 127.0.0.1] [--port 9000] [--timeout 30]

It echoes what it is sent. Each connection is touched whenever something arrives, which costs a look-up in a dictionary;
a timer is looked after once in a timeout, however much arrives. `server` is all of it, `__main__` the command.
"""
