"""Many clients must follow a value, such as a configuration, and none may miss a change.

Here `GET /?index=N` waits until the index exceeds N, as in Consul and etcd.

    python -m purgatory.uvicorn examples.blocking_queries.app:app

[Its guide](README.md) goes through it.
"""
