"""The HTTP side of the Durable Streams server."""
