"""Load for the long-poll server, and what is looked at meanwhile.

`server` runs one in a process of its own and reads its metrics, `waiting` is a process of clients that wait, `rude` has
clients that disappear or do not read, and `figures` says what is said of many latencies. `measure` and `soak`, one
folder up, are the commands.
"""
