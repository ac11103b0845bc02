"""A small durable topic log over HTTP, with long polling and replica acknowledgements on `purgatory`.

    python -m examples.long_poll_server [--port 8000] [--data DIR] [--journal DIR] [--demo] [--help]
    python -m examples.long_poll_server --database postgresql://user@host/database --workers 4

`operations` says what waits for what, `app` is the HTTP side, `log` stores the messages, `quotas` says who publishes
too fast, `answers` sends long answers page by page, `write_timeout` hangs up on who does not read them, `collector`
tunes the garbage collector, `live` makes the topic of statistics that the page follows, `demo` traffic to look at,
`static` serves the page itself (`page/`), `__main__` runs the server. `store` says what it needs of a log; `postgres`
is the one that several processes share, with what is promised then; `workers` starts them, and `batches` serves
together who ask at the same time. `measure` is a load of ten thousand waiting clients that prints what they cost, and
`soak` some minutes of clients that come, go and disappear; both use `load/`. What clients may not do: `requests` has
what a request may say, `limits` how much, `protocol` what is read of it at all, and `guard` keeps away the pages of
other sites.
"""
