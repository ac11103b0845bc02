"""Which share of operations expires with a timeout, and which timeout keeps a wanted share: from the bins of a cube.

What is estimated is the share that an operator counts: of all operations that arrive, those that are still waiting when
the timeout comes. One that was cancelled has left, so it does not expire with any longer timeout. An operation that was
closed, or expired, is known to have waited until then and no longer: it is censored there, and the product-limit
estimator (Kaplan and Meier, 1958) takes it into account.

Operations do not end independently of each other: a change wakes all watchers of a key, and an incident makes a
thousand of them slow. Therefore bands are drawn from whole blocks of time (the block bootstrap of Künsch, 1989), and
not from operations. Of bands by operations, which are narrower, most miss the truth where keys have fifty watchers.

Operations of one kind may have several timeouts, and a service often gives short ones to short work. Each timeout is a
stratum of its own. Where the strata agree as far as both are known, they are pooled. Where they do not, nothing is
known of a stratum beyond its timeout but that its share does not grow, and that bounds the answer.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

BINS: Final = 100
"""Bins of a decade: a bin's upper edge is 2.3 % above its lower one."""
LOWEST: Final = -600
"""The number of the first bin, which ends at a microsecond. The bin of number 0 ends at a second."""
EDGES: Final[Floats] = 10.0 ** (np.arange(LOWEST, 801) / BINS)
"""The upper edges of all bins, in seconds."""

BLOCKS: Final = 40
"""Blocks into which the time is cut. They are far longer than what ends together, and enough to draw from."""
FEW: Final = 10
"""Blocks in which operations must outlast a timeout, at least, for a statement about it."""
_DRAWS: Final = 400
INDEPENDENT: Final = 12.0
"""As many blocks that are independent of each other are needed for an answer. Of days fewer do."""
_DAY: Final = 86_400.0
_SEASON: Final = 72_000.0
"""Seconds of a journal from which on the daily ups and downs are known as such."""
_NORMAL: Final = 1.959964
"""The quantile 0.975 of the normal distribution."""
_SAFE: Final = 0.9
"""The quantile of the drawn timeouts that is advised."""
_APART: Final = 3.0
"""Standard errors by which strata that agree may differ."""


@dataclass(frozen=True, slots=True)
class Ends:
    """How the operations of a kind have ended, by stratum, block of time, and bin of their wait."""

    gone: Floats
    """How many left before their deadline."""
    seen: Floats
    """How many left or were last seen."""
    causes: dict[str, Floats]
    """How many left for each reason, by bin alone."""
    times: Floats
    """The middle of each block, in seconds."""
    are_days: bool
    """Whether the blocks are days."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is known of the timeouts of a kind of operation."""

    timeout_rate: float
    """The share that may expire."""
    rates: Floats
    """The share that expires with a timeout at each of `EDGES`, up to the longest that is known."""
    low: Floats
    high: Floats
    """The 95 % band of that share."""
    incidence: dict[str, Floats]
    """The share that has left for each reason, at each of the edges."""
    timeout: float | None
    """The shortest timeout with which no more than the share `timeout_rate` expires; `None` if that is not known."""
    earliest: float | None
    latest: float | None
    """The 95 % band of that timeout; `None` where it has no end."""
    safe: float | None
    """The advice: the timeout that keeps the wanted share with a probability of 90 %."""
    total: int
    """How many operations there were."""
    effective: float
    """As many operations that end independently of each other would tell as much."""
    independent: float
    """As many blocks of time that are independent of each other would tell as much."""
    reason: str | None
    """Why there is no advice: `few`, `unreached`, `strata` or `alike`."""

    @property
    def longest(self) -> float:
        """The longest timeout whose share is known, in seconds: infinite, if no operation was seen to need longer."""
        return float(EDGES[len(self.rates) - 1]) if self.rates[-1] > 0 else np.inf

    def at(self, timeout: float) -> tuple[float, float, float]:
        """The share that expires with `timeout` seconds, and its band. It must be known."""
        place = min(int(np.searchsorted(EDGES, timeout * (1 - 1e-9))), len(self.rates) - 1)
        return float(self.rates[place]), float(self.low[place]), float(self.high[place])

    def ended(self, timeout: float) -> dict[str, float]:
        """The shares that leave before `timeout` seconds, which must be known, for each reason."""
        place = min(int(np.searchsorted(EDGES, timeout * (1 - 1e-9))), len(self.rates) - 1)
        shares = {cause: float(share[place]) for cause, share in self.incidence.items()}
        part = (1 - float(self.rates[place])) / (sum(shares.values()) or 1.0)  # of all strata, with what expires
        return {cause: part * share for cause, share in shares.items()}

    def waits(self, timeout: float) -> float:
        """How long an operation waits on average with a timeout of so many seconds, which must be known."""
        count = min(int(np.searchsorted(EDGES, timeout * (1 - 1e-9))), len(self.rates) - 1)
        widths = np.diff(EDGES[: count + 1], prepend=0.0)
        before = np.concatenate(([1.0], self.rates[:count]))
        return float((widths * (before + self.rates[: count + 1]) / 2).sum())


def estimate(ends: Ends, timeout_rate: float) -> Estimate:
    """Estimate which timeouts keep the share of operations that expire at `timeout_rate`."""
    blocks = ends.seen.shape[1]
    random = np.random.default_rng(0)
    drawn = random.multinomial(blocks, np.full(blocks, 1 / blocks), _DRAWS)
    weights = np.ones((_DRAWS + 1, blocks))  # the first are those of the estimate itself
    weights[1:] += drawn - 1

    num_bins = int(np.flatnonzero(ends.seen.sum(axis=(0, 1)))[-1]) + 1
    lower, upper, agree = _curves(ends.gone[:, :, :num_bins], ends.seen[:, :, :num_bins], weights)
    independent = _independent(ends, min(int(_crossing(upper[:1], timeout_rate)[0]), num_bins - 1))
    # Draws of blocks that are alike vary less than what is estimated, and so do draws from few.
    wider = np.sqrt(blocks / independent * blocks / max(blocks - 1, 1)) * _student(independent - 1) / _NORMAL
    lower, upper = (curve[0] + wider * (curve - curve[0]) for curve in (lower, upper))
    low = np.quantile(lower[1:], 0.025, axis=0).clip(0.0, 1.0)
    high = np.quantile(upper[1:], 0.975, axis=0).clip(0.0, 1.0)
    if blocks == 1:  # nobody knows how blocks differ
        low, high = np.zeros_like(low), np.ones_like(high)
    place, *draws = _crossing(upper, timeout_rate).tolist()
    draws.sort()
    safe, latest = draws[int(_SAFE * _DRAWS)], draws[int(0.975 * _DRAWS)]
    earliest = sorted(_crossing(lower[1:], timeout_rate).tolist())[int(0.025 * _DRAWS)]

    reason = None
    if place < num_bins and np.count_nonzero(_outlasting(ends, place)) < FEW:
        reason = "few"
    elif not ends.are_days and independent < INDEPENDENT and blocks >= INDEPENDENT:
        reason = "alike"
    elif safe >= num_bins:
        reason = "unreached" if agree or lower[0, -1] > timeout_rate else "strata"
    total = int(ends.seen.sum())
    at = min(place, num_bins - 1)
    rate, variance = float(upper[0, at]), float(upper[1:, at].var())
    return Estimate(
        timeout_rate,
        upper[0],
        low,
        high,
        _incidence(ends, num_bins),
        None if place >= num_bins else float(EDGES[place]),
        None if earliest >= num_bins else float(EDGES[max(earliest - 1, 0)]),
        None if latest >= num_bins else float(EDGES[latest]),
        None if reason else float(EDGES[safe]),
        total,
        rate * (1 - rate) / variance if variance > 0 else total,
        independent,
        reason,
    )


def _independent(ends: Ends, place: int) -> float:
    """As many blocks that are independent of each other would tell as much about what lasts longer than `place`.

    It follows from the correlation of each block with the next, with the correction of its bias for few blocks
    (Marriott and Pope, 1954). Daily ups and downs are taken away before, because they come again: two harmonics.
    """
    longer, all_ = _outlasting(ends, place), ends.seen.sum(axis=(0, 2))
    blocks = len(all_)
    if ends.are_days or blocks < FEW:
        return float(blocks)
    residuals = longer - longer.sum() / all_.sum() * all_
    fitted = 1
    if ends.times[-1] - ends.times[0] >= _SEASON:
        angles = 2 * np.pi * ends.times / _DAY
        waves = np.stack([np.ones(blocks)] + [of(n * angles) for n in (1, 2) for of in (np.sin, np.cos)], axis=1)
        residuals = residuals - waves @ np.linalg.lstsq(waves, residuals, rcond=None)[0]
        fitted = waves.shape[1]
    residuals = residuals - residuals.mean()
    square = float((residuals**2).sum())
    found = float((residuals[1:] * residuals[:-1]).sum()) / square if square > 0 else 0.0
    correlation = min(max(found + (3 * found + fitted) / blocks, 0.0), 0.95)
    return blocks * (1 - correlation) / (1 + correlation)


def _student(freedom: float) -> float:
    """The quantile 0.975 of Student's distribution, by the expansion of Cornish and Fisher."""
    z, n = _NORMAL, max(freedom, 1.0)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def surviving(ends: Ends) -> Floats:
    """The share that lasts longer than each of `EDGES`, of all strata together."""
    return _expiring(ends.gone.sum(axis=(0, 1)), ends.seen.sum(axis=(0, 1)))


def _curves(gone: Floats, seen: Floats, weights: Floats) -> tuple[Floats, Floats, bool]:
    """The shares that expire at least, and at most, at each edge for each draw; and whether the strata agree."""
    gone, seen = weights @ gone, weights @ seen  # of each stratum, for each draw
    if _agree(gone, seen):
        pooled = _expiring(gone.sum(axis=0), seen.sum(axis=0))
        return pooled, pooled, True
    shares = seen.sum(axis=2) / seen.sum(axis=(0, 2))
    most = shares[:, :, None] * _expiring(gone, seen)  # beyond the end of a stratum it stays what it was
    least = most.copy()
    for curve, counts in zip(least, seen, strict=True):
        curve[:, _end(counts) + 1 :] = 0.0
    return least.sum(axis=0), most.sum(axis=0), False


def _expiring(gone: Floats, seen: Floats) -> Floats:
    """The product-limit estimate for each draw."""
    at_risk = seen[..., ::-1].cumsum(axis=-1)[..., ::-1]
    left = np.divide(gone, at_risk, out=np.zeros_like(gone), where=at_risk > 0)
    return np.cumprod(1 - left, axis=-1)


def _incidence(ends: Ends, num_bins: int) -> dict[str, Floats]:
    """The cumulative incidence of competing risks (Aalen and Johansen, 1978), of all strata together."""
    gone, seen = ends.gone.sum(axis=(0, 1))[:num_bins], ends.seen.sum(axis=(0, 1))[:num_bins]
    at_risk = np.maximum(seen[::-1].cumsum()[::-1], 1.0)
    before = np.concatenate(([1.0], _expiring(gone, seen)[:-1]))
    return {cause: (before * counts[:num_bins] / at_risk).cumsum() for cause, counts in ends.causes.items()}


def _end(seen: Floats) -> int:
    """The last bin of a stratum of which something is known."""
    return int(np.flatnonzero(seen[0])[-1])


def _agree(gone: Floats, seen: Floats) -> bool:
    """Whether each stratum is like all others together, as far as both are known."""
    for number in range(len(seen)) if len(seen) > 1 else ():
        mine = np.arange(len(seen)) == number
        end = min(_end(seen[number]), _end(seen[~mine].sum(axis=0)))
        rest = _expiring(gone[~mine].sum(axis=0), seen[~mine].sum(axis=0))[:, : end + 1]
        difference = _expiring(gone[number], seen[number])[:, : end + 1] - rest
        error = difference[1:].std(axis=0)
        middle = int(np.searchsorted(-rest[0], -(1 + rest[0, end]) / 2))  # where half of them have left that do
        if any(abs(difference[0, place]) > _APART * max(error[place], 1e-9) for place in (middle, end)):
            return False
    return True


def _outlasting(ends: Ends, place: int) -> Floats:
    """How many operations of each block are known to have waited for longer than the timeout at `place`."""
    longer: Floats = ends.seen[:, :, place:].sum(axis=(0, 2)) - ends.gone[:, :, place].sum(axis=0)
    return longer


def _crossing(curves: Floats, timeout_rate: float) -> npt.NDArray[np.intp]:
    """For each draw the first place at which no more than the share `timeout_rate` expires, or one behind all."""
    reached = curves <= timeout_rate
    places: npt.NDArray[np.intp] = np.where(reached.any(axis=1), reached.argmax(axis=1), curves.shape[1])
    return places
