"""A small durable topic log over HTTP, with long polling and replica acknowledgements on `purgatory`.

    python -m examples.long_poll_server [--port 8000] [--data DIR] [--journal DIR] [--demo] [--help]
    python -m examples.long_poll_server --database postgresql://user@host/database --workers 4

`operations` has the delayed operations, `app` is the HTTP side, `log` stores the messages, `quotas` slows publishers
that are too fast, `answers` sends long answers page by page, `write_timeout` hangs up on clients that do not read them,
`collector` tunes the garbage collector, `live` makes the topic of statistics that the page follows, `demo` makes
traffic, `static` serves the page itself (`page/`), `__main__` runs the server. `store` is the interface of a log;
`postgres` is the log that several processes share, with its promises; `workers` starts them, and `batches` makes one
piece of work of simultaneous requests. `measure` is a load of ten thousand waiting clients and prints their costs, and
`soak` some minutes of clients that come, go and disappear; both use `load/`. Clients are restricted: `requests` checks
a request, `limits` its size, `protocol` its bytes, and `guard` keeps away the pages of other sites.
"""
