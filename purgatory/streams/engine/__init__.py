"""The streams of a running server: what is stored, what is in memory, and those that wait."""
