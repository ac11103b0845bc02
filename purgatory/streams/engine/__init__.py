"""The streams of a running server: the stored ones, the ones in memory, and the reads that wait."""
