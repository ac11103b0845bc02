"""The rules of a trace in SQL, for streams and curves, are those in columns, for the simulations."""

import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from purgatory.spark.columns import DEADLINE, IMPOSSIBLE, UNKNOWN_DEADLINE, schema
from purgatory.spark.files import literal
from purgatory.spark.lives import check, deadlines
from purgatory.spark.simulate import OUTCOMES
from tests.pipeline import traces

_NULLABLE = pa.schema({**{field.name: field.type for field in traces.WIDE}, "keys": pa.list_(pa.string())})
_SECONDS = (None, -0.001, 0.0, 0.25, 0.5, 0.5000005, 0.75, math.inf, math.nan)
_COMMON = {"timeout_s": (0.25, 0.5, None), "deadline_s": (None, 0.5), "waited_s": (0.5, 0.75), "completes_s": (None,)}
_VALUES: dict[str, tuple[Any, ...]] = {
    "purgatory": (None, "fetch"),
    "operation": (None, "fetch"),
    "keys": (None, [], ["a"], ["a", None], [None]),
    "arrived_at": (None, traces.START),
    **dict.fromkeys(("timeout_s", "deadline_s", "waited_s", "late_s", "completes_s"), _SECONDS),
    "outcome": (None, "unheard of", *OUTCOMES),
}


def _rows() -> list[dict[str, Any]]:
    """Each value of each column in rows that are possible otherwise, and each two odd values together."""
    common = [dict(zip(_COMMON, values, strict=True)) for values in product(*_COMMON.values())]
    plain = [
        traces.row(0, **values, outcome=outcome, late_s=late if outcome == "expired" else None)
        for values, outcome, late in product(common, OUTCOMES, (0.0, 0.25))
    ]
    draw = np.random.default_rng(1)
    odd = []
    for one, two in product(_VALUES, _VALUES):
        for value, other in product(_VALUES[one], _VALUES[two]):
            odd.append({**plain[draw.integers(len(plain))], one: value, two: other})
    return plain + odd


def test_rows_are_refused_for_the_same_column_and_have_the_same_deadline(spark: SparkSession, tmp_path: Path) -> None:
    rows = _rows()
    path = traces.write(tmp_path, rows, schema=_NULLABLE)
    first = F.coalesce(*[F.when(F.expr(rule), column) for column, rule in IMPOSSIBLE.items()])
    read = spark.read.schema(schema()).parquet(literal(str(path))).coalesce(1)
    found = read.select(
        first.alias("column"), F.expr(DEADLINE).alias("deadline"), F.expr(UNKNOWN_DEADLINE).alias("unknown")
    ).collect()
    table = pa.Table.from_pylist(rows, _NULLABLE)
    refused = 0
    for number, in_sql in enumerate(found):
        one = table.slice(number, 1)
        impossible = check(one)
        assert in_sql.column == (None if impossible is None else impossible.column), rows[number]
        if impossible is not None:
            refused += 1
            continue
        (deadline,) = deadlines(one).tolist()
        assert bool(in_sql.unknown) == math.isnan(deadline), rows[number]
        known = None if math.isnan(deadline) or deadline == math.inf else deadline
        assert in_sql.deadline == known, rows[number]
    assert 1000 < refused < len(rows) - 300
