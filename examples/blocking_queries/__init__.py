"""Blocking queries, as Consul and etcd have them: `GET /?index=N` waits until the index exceeds N.

    uvicorn examples.blocking_queries.app:app

[Its guide](README.md) goes through it.
"""
