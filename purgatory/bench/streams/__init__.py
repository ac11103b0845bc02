"""`purgatory bench --streams`: `purgatory serve` beside the reference Durable Streams server on Node.

servers     the two, each in a process of its own
client      connections, many in a process
appends     durable appends a second
reads       catch-up reads a second
readers     very many readers wait for a stream
delivery    readers wait for many streams, and wait again
"""
