"""Groups of members with heartbeats: a silent member is dropped, as by Kafka's group coordinator.

    python -m examples.heartbeats [--host 127.0.0.1] [--port 9001] [--session-timeout 10]

A member sends `GROUP MEMBER` in a datagram every few seconds, and is answered with the group's generation, which
changes whenever a member joins, leaves or is dropped, and its members. `GROUP MEMBER leave` leaves. From bash, a
member that is dropped after ten seconds: `echo workers a > /dev/udp/127.0.0.1/9001`.

`groups` has the groups and their members, `__main__` the command.
"""
