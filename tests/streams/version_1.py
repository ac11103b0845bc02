"""Streams and subscriptions of every kind, which the server of commit 3f953d8 has stored in `version_1.sqlite.xz`.

Run this file with `PYTHONPATH` naming a checkout of that commit to write `version_1.sqlite.xz` again.
"""

import lzma
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from purgatory.streams.core import subscriptions
from purgatory.streams.core.commands import Append, Create, Delete, Fork, Identity, Secrets
from purgatory.streams.core.offsets import encode
from purgatory.streams.core.transaction import Transaction
from purgatory.streams.storage.sqlite import WritingDatabase

FILE: Final = Path(__file__).parent / "version_1.sqlite.xz"
NOW: Final = 1_790_000_000.0
JSON: Final = "application/json"
TEXT: Final = "text/plain"
LARGE: Final = [
    (JSON, f"[{','.join(map(str, range(3000)))}]".encode()),
    (JSON, b'["%b", "%b", 1.50]' % (200_000 * b"x", 40_000 * b"y")),
    (TEXT, b"x" + 100_000 * b"\r\n"),
    (TEXT, ("x" + 70_000 * "é").encode()),
    ("application/octet-stream", bytes(range(256)) * 1000),
]
"""Appends of more than a row of later versions."""


def fill(database: Any) -> None:

    def run(command: Any) -> Any:
        transaction = Transaction(database, NOW)
        with database.transaction(command.paths, True):
            result = command.apply(transaction)
            database.store(transaction)
        database.stored(transaction)
        return result

    for number, (kind, body) in enumerate(LARGE):
        run(Create(f"large/{number}", kind, body=b"1"))
        run(Append(f"large/{number}", kind, body))
        run(Append(f"large/{number}", kind, b"2"))
        run(Create(f"fork/{number}", None, fork=Fork(f"large/{number}", 1, 1), body=b"3"))
    run(Create("fork/of-a-fork", None, fork=Fork("large/0", 1, 2500)))
    run(Create("fork/of-that", None, fork=Fork("fork/of-a-fork", 1, 1500)))
    run(Append("fork/of-that", JSON, b"[4, 5]"))
    run(Delete("fork/of-a-fork"))
    run(Create("ttl", TEXT, 2**31, body=b"a"))
    run(Create("expires", TEXT, None, ("2060-01-01T00:00:00Z", 2_840_140_800.0)))
    run(Create("closed", TEXT, body=b"a"))
    run(Append("closed", TEXT, b"b", "7", Identity("p", 3, 0), True))
    run(Create("producers", JSON))
    for seq in range(3):
        run(Append("producers", JSON, b'{"seq": %d}' % seq, None, Identity("p", 1, seq)))
    run(Append("producers", JSON, b"[[]]", None, Identity("q", 0, 0)))
    run(Secrets({"a": "secret"}))

    run(Create("wakes", JSON))
    run(subscriptions.Subscribe("pull", "pull-wake", "in/*", ("ttl",), None, "wakes", 30.0, "described"))
    run(subscriptions.Subscribe("hook", "webhook", None, ("in/a", "closed"), "https://example.org/", None, 5.0, None))
    for name in "ab":
        run(Create(f"in/{name}", JSON, body=b"[1, 2, 3]"))
    claimed = run(subscriptions.Claim("pull", "worker")).subscription
    token = claimed.incarnation, claimed.generation
    acks = (("in/a", encode(2)),)
    run(subscriptions.Acknowledge("pull", "pull-wake", claimed.wake, claimed.generation, token, acks))
    delivery = run(subscriptions.Deliver("hook", 10.0))
    run(subscriptions.Delivered("hook", delivery.view.subscription.wake, True, True))
    run(Append("in/a", JSON, b"4"))


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        file = Path(folder) / "streams.sqlite"
        database = WritingDatabase(file)
        fill(database)
        database.close()
        FILE.write_bytes(lzma.compress(file.read_bytes(), preset=9))
