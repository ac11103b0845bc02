"""Traces for the tests of the pipeline, written with pyarrow alone."""

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal import SCHEMA

START = datetime(2026, 11, 21, 12, tzinfo=UTC)
DAY = START.date()

_ROW: dict[str, Any] = {
    "purgatory": "fetch",
    "operation": "DelayedFetch",
    "keys": ["topic"],
    "timeout_s": 1.0,
    "waited_s": 0.5,
    "outcome": "satisfied",
    "late_s": None,
    "opened_at": START,
}


def row(second: float, **columns: Any) -> dict[str, Any]:
    """An operation that came so many seconds after the start: a satisfied fetch, but for `columns`."""
    made = {**_ROW, "arrived_at": START + timedelta(seconds=second), **columns}
    made.setdefault("deadline_s", made["timeout_s"])
    if made["outcome"] == "expired" and "late_s" not in columns:
        made["late_s"] = made["waited_s"] - made["timeout_s"]
    return made


def write(
    directory: Path,
    rows: Iterable[dict[str, Any]],
    instance: str = "web-1",
    schema: pa.Schema = SCHEMA,
    day: date = DAY,
) -> Path:
    """Add a file with these rows to the trace in `directory`. Returns its path."""
    path = directory / f"date={day}" / f"instance={instance}" / f"{uuid4().hex}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema), path)
    return path
