"""A small durable topic log over HTTP, with long polling and replica acknowledgements on `purgatory`.

    python -m examples.long_poll_server [--port 8000] [--data DIR] [--journal DIR] [--demo] [--help]

`operations` says what waits for what, `app` is the HTTP side, `log` stores the messages, `quotas` says who publishes
too fast, `live` makes the topic of statistics that the page follows, `demo` traffic to look at, `static` serves the
page itself (`page/`), `__main__` runs the server, and `measure` is a load of waiting clients that prints what they
cost.
"""
