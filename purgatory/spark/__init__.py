"""A data pipeline on Apache Spark: generate traffic, replay it with other settings, report on it, follow it live.

`purgatory pipeline --help` names the commands. Their modules can be used from any program with a Spark session:

- `traffic` describes traffic, `generate` makes it;
- `trace` reads a trace, generated or a server's journal: lists its `files`, `survey`s them, finds the `lives`;
- `simulate` runs operations through a purgatory, `replay` many of them at once on Spark;
- `survival` estimates how the rate of timeouts depends on the timeout, `report` makes tables, plots and a page;
- `session` starts Spark or connects to a server, `storage` reads and writes tables, `progress` shows how far a job is;
- `stream` follows a journal while it grows, `source` reads a stream of a Durable Streams server.

It needs the extra `spark`, and Java 17 or newer.
"""
