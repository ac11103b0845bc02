"""A service with metrics, a journal, limits and a tuned garbage collector. [Its guide](README.md) goes through it."""
