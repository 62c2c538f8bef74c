"""From the times of interleaved rounds to medians, spreads and a cost line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meprop.bench.timing import Timing


class Spread(NamedTuple):
    """The quartiles of some numbers."""

    q25: float
    median: float
    q75: float


def summarise(values: Sequence[float]) -> Spread:
    """The quartiles, interpolated between neighbours.

    >>> summarise([4.0, 1.0, 2.0, 3.0])
    Spread(q25=1.75, median=2.5, q75=3.25)
    """
    return Spread(*(float(q) for q in np.percentile(np.asarray(values, float), (25, 50, 75))))


def speedups(baseline: Sequence[float], times: Sequence[float]) -> list[float]:
    """How many times as fast as the baseline, round by round.

    >>> speedups([6.0, 8.0], [3.0, 2.0])
    [2.0, 4.0]
    """
    return [base / time for base, time in zip(baseline, times, strict=True)]


def fastest(timings: Sequence[Timing]) -> dict[str, Timing]:
    """Each contender in the memory format with the lowest median."""
    best: dict[str, Timing] = {}
    for timing in timings:
        name = timing.contender.name
        if name not in best or np.median(timing.totals) < np.median(best[name].totals):
            best[name] = timing
    return best


class Line(NamedTuple):
    """`cost = intercept + slope * ratio`, and the share of the variance it explains."""

    intercept: float
    slope: float
    r2: float


def fit_line(ratios: Sequence[float], costs: Sequence[float]) -> Line:
    """Least squares of a cost against the ratio.

    >>> fit_line([0.01, 0.05, 0.25], [1.1, 1.5, 3.5])
    Line(intercept=1.0, slope=10.0, r2=1.0)
    """
    x, y = np.asarray(ratios, float), np.asarray(costs, float)
    slope, intercept = np.polyfit(x, y, 1)
    left = float(np.square(y - intercept - slope * x).sum())
    total = float(np.square(y - y.mean()).sum())
    r2 = 1 - left / total if total else 1.0
    return Line(*(round(float(value), 12) for value in (intercept, slope, r2)))
