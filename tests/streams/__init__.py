"""Tests of the Durable Streams server."""
