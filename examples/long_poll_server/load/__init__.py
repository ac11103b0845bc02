"""Load for the long-poll server, and what is looked at meanwhile.

`server` runs one in a process of its own and reads its metrics, `waiting` is a process of clients that wait, `figures`
says what latencies are said to be. `measure` and `soak`, one folder up, are the commands.
"""
