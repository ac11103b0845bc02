"""Operations for simulations, one at a time, as the tests draw them."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from purgatory._core.listeners import Outcome
from purgatory.spark.simulate import OUTCOMES, Rows


class Arrival(NamedTuple):
    """An operation of a trace."""

    arrived: float
    keys: tuple[str, ...]
    timeout: float | None
    end: float
    ending: Outcome
    reference: object = None


def columns(arrivals: Sequence[Arrival]) -> Rows:
    """The operations, column by column."""
    return Rows(
        np.array([each.arrived for each in arrivals], np.float64),
        [each.keys for each in arrivals],
        np.array([inf if each.timeout is None else each.timeout for each in arrivals], np.float64),
        np.array([each.end for each in arrivals], np.float64),
        np.array([OUTCOMES.index(each.ending) for each in arrivals], np.int8),
        [each.reference for each in arrivals],
    )
