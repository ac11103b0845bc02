"""Traces and replays for reports, and the reports on them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from purgatory.journal import SCHEMA
from purgatory.spark import trace
from purgatory.spark.report import Recommendations, report
from purgatory.spark.simulate import COUNTS, OUTCOMES

Row = dict[str, Any]

NOON: Final = datetime(2026, 11, 21, 12, tzinfo=UTC)


def operation(**changes: Any) -> Row:
    """A row of a trace."""
    row: Row = {
        "purgatory": "fetch",
        "operation": "DelayedFetch",
        "keys": ["a"],
        "arrived_at": NOON,
        "timeout_s": 0.2,
        "waited_s": 0.05,
        "outcome": "satisfied",
        "late_s": None,
        "opened_at": NOON,
        "instance": "web-1",
    } | changes
    row.setdefault("deadline_s", row["timeout_s"])
    if row["outcome"] == "expired" and row["late_s"] is None:
        row |= {"waited_s": row["timeout_s"] + 0.001, "late_s": 0.001}
    return row


def write_trace(directory: Path, rows: Iterable[Row]) -> str:
    """Write a trace as a journal would."""
    parts = defaultdict(list)
    for row in rows:
        parts[f"date={row['arrived_at']:%Y-%m-%d}/instance={row['instance']}"].append(row)
    for name, some in parts.items():
        (directory / name).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(some, SCHEMA), directory / name / "rows.parquet")
    return str(directory)


def made_up() -> list[Row]:
    """Some hundred operations of all kinds. Some keys are different and have the same text."""
    random = np.random.default_rng(5)
    rows = []
    for number in range(600):
        outcome = str(random.choice(OUTCOMES, p=[0.1, 0.65, 0.13, 0.04, 0.04, 0.04]))
        waited = float(random.lognormal(-3.5, 1.0))
        rows.append(
            operation(
                purgatory="fetch" if number % 3 else "produce",
                operation=f"Delayed{number % 4 // 2}",
                keys=[f"key-{each}" for each in random.zipf(1.5, 3) % 40],
                arrived_at=NOON + timedelta(microseconds=int(random.integers(0, 90_000_000))),
                timeout_s=None if outcome == "satisfied" and number % 7 == 0 else 0.2,
                waited_s=0.0 if outcome == "completed_at_once" else waited,
                outcome=outcome,
                instance=f"web-{number % 2}",
            )
        )
    return rows


def summary_row(**changes: Any) -> Row:
    """The result of a replay for one purgatory with one configuration."""
    row: Row = dict.fromkeys(COUNTS, 0) | {
        "instance": "web-1",
        "purgatory": "fetch",
        "tick": 0.001,
        "wheel_size": 20,
        "purge_interval": 1000,
        "timeout": None,
        "operations": 1000,
        "peak_delayed": 50,
        "peak_dead": 900,
        "segments": 1,
        "late_p50": 0.0004,
        "late_p99": 0.0009,
        "late_max": 0.001,
    }
    return row | changes


def write_replay(directory: Path, rows: Sequence[Row]) -> str:
    """Write the results of a replay."""
    kinds = {"instance": pa.string(), "purgatory": pa.string()}
    kinds |= dict.fromkeys(("tick", "timeout", "late_p50", "late_p99", "late_max"), pa.float64())
    schema = pa.schema([(name, kinds.get(name, pa.int64())) for name in rows[0]])
    (directory / "summary").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema), directory / "summary" / "rows.parquet")
    return str(directory)


_COUNTED: Final[list[Row]] = [
    {"wake_ups": 400, "buckets": 500, "cascaded": 30, "scanned": 9000, "purges": 9},
    {"tick": 0.005, "wake_ups": 100, "buckets": 100, "late_p99": 0.0045},
    {"timeout": 1.0, "wake_ups": 300, "buckets": 300},
]

REPLAYED: Final = [summary_row(instance=instance, **counts) for instance in ("web-0", "web-1") for counts in _COUNTED]


class Page(HTMLParser):
    """The elements that a browser would find."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@dataclass(frozen=True)
class Made:
    """A report that has been made."""

    rows: list[Row]
    directory: Path
    recommended: Recommendations
    said: list[str]

    def table(self, name: str) -> list[Row]:
        found: list[Row] = pq.read_table(self.directory / "tables" / name).to_pylist()
        return found

    @property
    def page(self) -> Page:
        return Page(self.recommended.page.read_text("utf-8"))


def make(spark: SparkSession, directory: Path, rows: list[Row], output: str = "report", **options: Any) -> Made:
    """Write `rows` as a trace, and a report on it."""
    said: list[str] = []
    opened = trace.read(spark, write_trace(directory / "trace", rows))
    recommended = report(spark, opened, str(directory / output), say=said.append, **options)
    return Made(rows, directory / output, recommended, said)


HOSTILE: Final = [
    "<script>alert(1)</script>",
    "</title><img src=https://example.com/x onerror=alert(1)>",
    "$x$",
    r"$\frac{1}{0$",
    "k" * 1000,
    "W" * 1000,
    "😀漢字ع",
    "_hidden",
    "{{ 7 * 7 }}{% raw %}",
    "line\nbreak\ttab\x00nul\u202egnirts",
    "\x01" * 300,
    "",
    "'\"&amp;",
]
