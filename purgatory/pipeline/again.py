"""Whether clients ask again after an answer, and what another timeout would do then.

A long-polling client that is told "nothing yet" asks again at once. So a shorter timeout takes no client away: as many
wait as before, and the number of requests multiplies. If clients leave instead, each arrival is another client's, and a
shorter timeout saves memory. A journal does not name clients, but it tells these two apart, because in the first case
operations of a key arrive when others of that key end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from purgatory.pipeline.answers import (
    CAUSES,
    Frame,
    Kind,
    Rung,
    duration,
    ends,
    longest_timeout,
    moments,
    round_timeouts,
    strata,
)
from purgatory.pipeline.estimate import EDGES, LOWEST, Floats, surviving
from purgatory.pipeline.words import percent

World: TypeAlias = Literal["ask-again", "leave", "unknown"]

_BIN: Final = 250_000
"""Microseconds."""
_CAUSES: Final = ("num_expired", "num_others")
"""Ends that an arrival may follow."""
_LAGS: Final = np.arange(-1, 17)
"""An arrival is looked for so many bins after an end: a client's clock may be a bin behind."""
_MEAN: Final = 81
"""Bins of the moving mean, of twenty seconds, which is subtracted: load that comes and goes does not answer ends."""
_APART: Final = 100
"""Bins after which nothing is left of a moment in sums of products."""
_FARTHEST_WAIT: Final = 120
"""Bins between an arrival and its end that are too many for the moving mean."""
_BLOCKS: Final = 20
_MOST: Final = 60_000
"""Moments that are looked at, about."""
_ENOUGH: Final = 50
"""Ends that tell."""
_ALL, _NONE = (0.75, 1.25), 0.25
"""The share of ends that an arrival follows, at least and at most if clients ask again, and at most if they leave."""
_LEAST: Final = 0.05
"""If less is between what is found in both cases, nothing can be told, and the standard error is large."""
_AT_ONCE: Final = 0.05
"""Seconds. The bins can't tell a shorter gap from none."""
_NO_GAP, _SMALL_GAP = 0.03, 0.1
"""The share of a timeout up to which a gap makes no difference, and up to which it makes none that it varies."""
_FARTHEST: Final = (200.0, 5.0)
"""How many times shorter, and longer, than the longest timeout in use the others of a ladder are."""


@dataclass(frozen=True, slots=True)
class Follow:
    """Which share of ends is followed by an arrival of the same key, and after how long."""

    ends: int
    """How many ends it is from."""
    share: float
    error: float
    """Its standard error."""
    gap: float
    """The mean time from the end to the arrival, in seconds."""
    varies: bool
    """Whether that time differs from one client to another, as with backoff."""

    @property
    def world(self) -> World:
        """What it says of the clients."""
        if self.share - 2 * self.error >= _ALL[0] and self.share <= _ALL[1]:
            return "ask-again"
        return "leave" if self.share + 2 * self.error <= _NONE else "unknown"


def follows(table: pa.Table, operations: Frame, kind: Kind) -> Follow | None:
    """Which share of answers a client of this kind follows with a request. `None` if too few have ended to tell.

    `operations` are the rows of the cube that count the operations of this kind.

    It is a regression of a key's arrivals on its expired ends and on its other ends (in bins of a quarter of a second,
    less their moving mean) with distributed lags. Where waits are short, an end is near its own arrival, so that some
    share is found even if nobody asks again. That share follows from the waits, and what is told is where the found one
    is between it and 1. The standard error is that of a jackknife over twenty blocks of time. Expired ends tell if
    there are enough, else the other ones.
    """
    rows = moments(table, kind, _MOST)
    if len(rows) < _ENOUGH:
        return None
    time, key = rows["arrived"].to_numpy(np.int64) // _BIN, rows["hash"].to_numpy(np.int64)
    block = (time - time.min()) * _BLOCKS // (time.max() - time.min() + 1)
    order = np.lexsort((time, key))
    time, key, block = time[order], key[order], block[order]
    # The time in which nothing happens to a key is left out, and the keys come one after the other.
    steps = np.where(np.diff(key) == 0, np.minimum(np.diff(time), _APART), _APART)
    place = _APART + np.concatenate(([0], steps.cumsum()))
    parts = np.flatnonzero((np.diff(key) != 0) | (np.diff(block) != 0)) + 1
    starts, of_block = np.concatenate(([0], place[parts])), np.concatenate((block[:1], block[parts]))
    length = int(place[-1]) + _APART
    arrivals, *causes = (
        _less_mean(np.bincount(place, rows[name].to_numpy(float)[order], length).astype(float))
        for name in ("operations", *_CAUSES)
    )

    def sums(first: Floats, second: Floats, lag: int) -> Floats:
        """For each block, the sum of the products of `first` and of `second` so many bins later."""
        until = length - abs(lag)
        product = np.zeros(length)
        product[max(0, -lag) :][:until] = first[max(0, -lag) :][:until] * second[max(0, lag) :][:until]
        return np.bincount(of_block, np.add.reduceat(product, starts), _BLOCKS).astype(float)

    products, responses = _normal_equations(arrivals, causes, sums)
    own = np.concatenate(
        [
            np.bincount(block, rows[name].to_numpy(float)[order], _BLOCKS)[:, None] * _own(operations, name)
            for name in _CAUSES
        ],
        axis=1,
    )

    def solved(left_out: int | None) -> tuple[Floats, Floats]:
        """The coefficients of all lags, and the share of each cause, without one of the blocks."""
        used = np.arange(_BLOCKS) != left_out
        both = np.stack([responses[used].sum(axis=0), own[used].sum(axis=0)], axis=1)
        coefficients = _solve(products[used].sum(axis=0), both)
        found, alone = coefficients.reshape(len(_CAUSES), len(_LAGS), 2).sum(axis=1).T
        return coefficients[:, 0], (found - alone) / np.maximum(1 - alone, _LEAST)

    coefficients, shares = solved(None)
    without = np.array([solved(number)[1] for number in range(_BLOCKS)])
    error = np.sqrt((_BLOCKS - 1) / _BLOCKS * ((without - without.mean(axis=0)) ** 2).sum(axis=0))
    for number, name in enumerate(_CAUSES):
        if (count := int(rows[name].sum())) >= _ENOUGH:
            of_cause = coefficients[number * len(_LAGS) :][: len(_LAGS)]
            return _follow(count, of_cause, float(shares[number]), float(error[number]))
    return None


def _less_mean(counts: Floats) -> Floats:
    sums = np.concatenate((np.zeros(_MEAN // 2 + 1), counts, np.zeros(_MEAN // 2))).cumsum()
    less: Floats = counts - (sums[_MEAN:] - sums[:-_MEAN]) / _MEAN
    return less


def _own(operations: Frame, cause: str) -> Floats:
    """What the arrival of an operation itself adds to the sums of products with its end, on average, for each lag."""
    is_cause = (
        (operations["outcome"] == "expired")
        if cause == "num_expired"
        else (~operations["outcome"].isin(["expired", "closed"]))
    )
    some = operations[is_cause]
    counts = some["operations"].to_numpy(float)
    if not counts.sum():
        return np.zeros(len(_LAGS))
    bins = np.minimum(EDGES[some["wait_bin"].to_numpy() - LOWEST] / (_BIN / 1e6), _FARTHEST_WAIT)
    # A wait of 1.3 bins ends one bin after its arrival, or two.
    shares = np.zeros(_FARTHEST_WAIT + 2)
    np.add.at(shares, bins.astype(int), counts * (1 - bins % 1))
    np.add.at(shares, bins.astype(int) + 1, counts * (bins % 1))
    # This is what the moving means make of a product of two moments.
    apart = np.abs(_LAGS + np.arange(len(shares))[:, None])
    weight = (apart == 0) - 2 * (apart <= _MEAN // 2) / _MEAN + np.maximum(0, _MEAN - apart) / _MEAN**2
    own: Floats = shares @ weight / counts.sum()
    return own


def _normal_equations(
    arrivals: Floats, causes: Sequence[Floats], sums: Callable[[Floats, Floats, int], Floats]
) -> tuple[Floats, Floats]:
    """The sums of products of the lagged causes with each other, and with the arrivals, for each block."""
    count = len(_LAGS)
    apart = count - 1 + np.subtract.outer(np.arange(count), np.arange(count))

    def lagged(one: Floats, other: Floats) -> Floats:
        return np.stack([sums(one, other, lag) for lag in range(1 - count, count)], axis=1)[:, apart]

    products = np.concatenate(
        [np.concatenate([lagged(one, other) for other in causes], axis=2) for one in causes], axis=1
    )
    responses = np.concatenate(
        [np.stack([sums(one, arrivals, int(lag)) for lag in _LAGS], axis=1) for one in causes], axis=1
    )
    return products, responses


def _solve(products: Floats, responses: Floats) -> Floats:
    size = len(products)
    ridge = 1e-6 * np.trace(products) / size * np.eye(size)
    solution: Floats = np.linalg.lstsq(products + ridge, responses, rcond=None)[0]
    return solution


def _follow(count: int, coefficients: Floats, share: float, error: float) -> Follow:
    lags = _LAGS * _BIN / 1e6
    scale = max(float(coefficients.sum()), 0.05)
    gap = float((lags * coefficients).sum() / scale)
    # The place of a moment within its bin varies too.
    variance = float(((lags - gap) ** 2 * coefficients).sum() / scale) - (_BIN / 1e6) ** 2 / 6
    is_none = gap < _AT_ONCE
    return Follow(count, share, error, 0.0 if is_none else gap, not is_none and variance > (gap / 2) ** 2)


@dataclass(frozen=True, slots=True)
class Clients:
    """What clients of a kind of operation do after an answer."""

    world: World
    follow: Follow | None
    """What the journal tells of it."""
    is_given: bool
    """Whether the operator said so."""

    @classmethod
    def of(cls, table: pa.Table, rows: Frame, kind: Kind, given: World | None) -> "Clients":
        """Ask the journal, unless it is `given`."""
        follow = follows(table, rows, kind)
        return cls(given or (follow.world if follow else "unknown"), follow, given is not None)

    @property
    def gap(self) -> tuple[float, bool]:
        """After how many seconds they ask again, and whether that varies."""
        return (
            (self.follow.gap, self.follow.varies) if self.follow and self.follow.world == "ask-again" else (0.0, False)
        )

    @property
    def ask_first(self) -> bool:
        """Whether the page begins with what happens if they ask again."""
        likely = self.follow is not None and self.follow.share >= 0.5
        return self.world == "ask-again" or (self.world == "unknown" and likely)

    def how(self) -> str:
        """How that is known, as the begin of a sentence."""
        if self.is_given:
            return "You say that clients " + ("ask again" if self.world == "ask-again" else "leave")
        if self.follow is None:
            return "Too few operations ended to tell whether clients ask again"
        share = f"a request for the same key follows {percent(min(max(self.follow.share, 0.0), 1.0))} of the answers"
        if self.world == "unknown":
            if self.follow.share > 1.25:
                return "Requests come at fixed times, so the journal doesn't tell whether clients ask again"
            error = percent(2 * self.follow.error)
            return f"The journal doesn't tell whether clients ask again: {share}, give or take {error}"
        return f"Clients {'ask again' if self.world == 'ask-again' else 'leave'}: {share}"


def ladder(rows: Frame, gap: float, varies: bool) -> list[Rung]:
    """What timeouts of round numbers would do if clients ask again after `gap` seconds, with the longest in use."""
    used = longest_timeout(rows)
    longest = used or float(rows["wait_max"].max())
    timeouts = round_timeouts(longest / _FARTHEST[0], longest * _FARTHEST[1], [used] if used else [])
    rungs = (_rung(rows, timeout, gap, varies, timeout == used) for timeout in timeouts if timeout > 0)
    return [rung for rung in rungs if rung is not None]


def _rung(rows: Frame, timeout: float, gap: float, varies: bool, is_used: bool) -> Rung | None:
    """What happens with `timeout` seconds. `None` if that can't be known.

    For each stratum of timeouts in use, let τ₀ be that timeout, X and W the operations that expire and end otherwise
    a second, P how many are pending, and S(t) the share of operations that last longer than t. The clients are then
    N = P + X·gap, whatever the timeout τ. A client who waits for t has ⌊t/τ⌋ empty answers, so there are between
    P/τ - W and P/τ of them a second. If τ ≤ τ₀, there are λ·ΣS(kτ), and those that a wait has beyond τ₀ if τ₀ is no
    multiple of τ.
    """
    if gap > _SMALL_GAP * timeout and varies:
        return None
    span = duration(rows)
    low = high = clients = 0.0
    for _, some in rows.groupby(strata(rows)):
        in_use = _timeout(some)
        count = some.groupby("outcome")["operations"].sum()
        expired = float(count.get("expired", 0)) / span
        others = float(count.drop(["expired", "closed"], errors="ignore").sum()) / span
        waiting = float(some["wait_sum"].sum()) / span + expired * gap
        most = waiting / (timeout + gap)
        least = max(0.0, most - others)
        if timeout > in_use * (1 + 1e-9):
            most = min(most, expired)
        elif gap <= _NO_GAP * timeout:
            known = float(count.sum()) / span * _sum_of_shares(some, timeout, in_use)
            is_whole = np.isinf(in_use) or abs(in_use / timeout - round(in_use / timeout)) < 1e-6
            least, most = max(least, known), min(most, known + (0.0 if is_whole else expired))
        low, high, clients = low + min(least, most), high + most, clients + waiting
    count = rows.groupby("outcome")["operations"].sum()
    ended = {cause: float(count.reindex(list(of)).sum()) / span for cause, of in CAUSES.items()}
    empty, others = (low + high) / 2, sum(ended.values())
    requests = max(empty + others, 1e-12)
    return Rung(
        "ask-again",
        timeout,
        empty / requests,
        low / max(low + others, 1e-12),
        high / max(high + others, 1e-12),
        **{cause: number / requests for cause, number in ended.items()},
        requests=empty + others,
        empty_answers=empty,
        empty_low=low,
        empty_high=high,
        pending=max(0.0, clients - empty * gap),
        is_safe=False,
        is_used=is_used,
    )


def _timeout(rows: Frame) -> float:
    """The timeout of a stratum: infinite, if it has none."""
    known = rows[rows["timeout_max"].notna()]
    return float(np.average(known["timeout_max"], weights=known["operations"])) if len(known) else np.inf


def _sum_of_shares(rows: Frame, timeout: float, in_use: float) -> float:
    """How many timeouts an operation outlasts on average, as far as its own one lets it be known."""
    found = ends(rows)
    last = int(np.flatnonzero(found.seen.sum(axis=(0, 1)))[-1])
    shares = surviving(found)[: last + 1]
    until = min(in_use, float(EDGES[last]))
    times = timeout * np.arange(1, int(until / timeout + 1e-9) + 1)
    return float(np.interp(times, np.concatenate(([0.0], EDGES[: last + 1])), np.concatenate(([1.0], shares))).sum())
