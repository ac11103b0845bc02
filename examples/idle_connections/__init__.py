"""A TCP server that closes connections which have been silent for too long.

    python -m examples.idle_connections [--host 127.0.0.1] [--port 9000] [--timeout 30]

It echoes all data. Each connection is touched whenever data arrives, which costs a look-up in a dictionary. A timer
looks at a connection once in a timeout, however much data arrives. `server` has the server, `__main__` the command.
"""
