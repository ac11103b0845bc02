"""Apache Spark: a session, and a stream of a Durable Streams server as a source.

- `session` starts Spark on this machine or a cluster, or connects to a server.
- `source` reads a stream, a micro-batch at a time, each message exactly once, by means of `reading`.

It needs the extra `spark`, and Java 17 or newer. `purgatory pipeline` is built on it.
"""
