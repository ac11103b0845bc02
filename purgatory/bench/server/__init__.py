"""`purgatory bench --streams`: `purgatory serve` beside the reference Durable Streams server on Node.

servers     the two, with their data in a new folder on the disk
requests    what is asked of them
appends     durable appends a second, which are read back
readers     very many readers wait for a stream
"""
