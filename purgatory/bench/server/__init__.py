"""`purgatory bench --streams`: `purgatory serve` beside the reference Durable Streams server on Node."""
