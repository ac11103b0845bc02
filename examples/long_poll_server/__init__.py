"""A small durable topic log over HTTP, with long polling and replica acknowledgements on `purgatory`.

    python -m examples.long_poll_server [--host 127.0.0.1] [--port 8000] [--data DIR] [--max-pending N]

`operations` says what waits for what, `app` is the HTTP side, `log` stores the messages, `__main__` runs the server,
and `measure` is a load of waiting clients that prints what they cost.
"""
