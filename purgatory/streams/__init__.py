"""A Durable Streams server: append-only streams over HTTP, with reads that wait and keep no task.

`purgatory serve` runs it. The protocol: https://github.com/durable-streams/durable-streams
"""
