"""A long-poll endpoint in Starlette: `GET /topics/NAME?offset=N` waits until the topic has messages after N.

    uvicorn examples.long_poll.app:app

[Its guide](README.md) goes through it.
"""
