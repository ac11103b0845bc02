"""The semantics of streams, producers, forks and subscriptions, without I/O."""
