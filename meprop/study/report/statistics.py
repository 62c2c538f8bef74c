"""Intervals, paired differences and tests over seeds; scipy does the work.

A seed is the unit: two settings with one seed share initialisation and data order, so they are a
pair. One seed has no spread, so it has no interval and no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

LEVEL = 0.95
MARGIN = 0.10  # points of test accuracy: a smaller difference does not matter
STEP = 0.01  # points of test accuracy: one image of 10,000
MOST_SEEDS = 1000  # more of them nobody would train


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval (Student's t); bounds are NaN with fewer than two values.

    `p` is the two-sided probability of a mean so far from zero, if zero were the true one.
    """

    mean: float
    low: float
    high: float
    sd: float
    p: float
    n: int

    @property
    def known(self) -> bool:
        """Is there an interval at all?"""
        return not math.isnan(self.low)


def interval(values: Sequence[float], level: float = LEVEL, step: float = STEP) -> Interval:
    """The mean of some values, and how well they determine it.

    The values are whole numbers of `step`. Two or three of them are often equal by chance, which
    is no certainty: the spread is taken to be at least that of rounding to a step, step / √12.

    >>> found = interval([99.0, 99.1, 99.2])
    >>> print(f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f})")
    99.10 (98.85 to 99.35)
    """
    data = np.asarray(values, dtype=float)
    mean = float(data.mean()) if len(data) else math.nan
    if len(data) < 2:
        return Interval(mean, math.nan, math.nan, math.nan, math.nan, len(data))
    sd = max(float(data.std(ddof=1)), step / math.sqrt(12))
    found = stats.t(len(data) - 1, loc=mean, scale=sd / math.sqrt(len(data)))
    low, high = map(float, found.interval(level))
    p = 2 * float(min(found.cdf(0.0), found.sf(0.0)))
    return Interval(mean, low, high, sd, p, len(data))


def percentage(values: Sequence[float]) -> Interval:
    """`interval` of percentages, whose bounds stay between 0 and 100.

    >>> found = percentage([99.7, 99.9])
    >>> print(f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f})")
    99.80 (98.53 to 100.00)
    """
    found = interval(values)
    return replace(found, low=max(found.low, 0.0), high=min(found.high, 100.0))


def paired(
    ours: Mapping[int, float],
    theirs: Mapping[int, float],
    level: float = LEVEL,
    step: float = STEP,
) -> Interval:
    """The difference ours - theirs over the seeds that both have.

    >>> paired({0: 99.2, 1: 99.3, 2: 99.1}, {0: 99.0, 1: 99.1}).n
    2
    """
    seeds = sorted(ours.keys() & theirs.keys())
    return interval([ours[seed] - theirs[seed] for seed in seeds], level, step)


def holm(probabilities: Sequence[float]) -> list[float]:
    """Probabilities adjusted for their number (Holm 1979).

    NaN, a comparison that was planned and is not there, stays NaN and counts: their number was
    fixed beforehand.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    adjusted = [math.nan] * len(probabilities)
    known = sorted((p, place) for place, p in enumerate(probabilities) if not math.isnan(p))
    largest = 0.0
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(probabilities) - rank)))
        adjusted[place] = largest
    return adjusted


def seeds_needed(found: Interval, threshold: float, level: float = LEVEL) -> int | None:
    """How many seeds in all would put the interval on one side of `threshold`.

    Taken that mean and spread stay as they are; None if they are unknown, or if it were too many.

    >>> seeds_needed(interval([0.1, 0.0, 0.2]), threshold=-0.1)
    4
    """
    if not found.known:
        return None
    distance = abs(found.mean - threshold)
    for n in range(2, MOST_SEEDS + 1):
        if stats.t.ppf((1 + level) / 2, n - 1) * found.sd / math.sqrt(n) < distance:
            return n
    return None


@dataclass(frozen=True)
class Discordant:
    """Test images that only one of two networks gets right, and McNemar's exact test."""

    only_first: int
    only_second: int
    p: float


def discordant(first_errors: Collection[int], second_errors: Collection[int]) -> Discordant:
    """Compare two networks on the same test images, by the indices each gets wrong.

    This is about two trained networks, not about two methods: another seed gives others.

    >>> discordant([1, 2, 3], [3, 4])
    Discordant(only_first=1, only_second=2, p=1.0)
    """
    first, second = set(first_errors), set(second_errors)
    only_first, only_second = len(second - first), len(first - second)
    total = only_first + only_second
    p = float(stats.binomtest(only_first, total).pvalue) if total else 1.0
    return Discordant(only_first, only_second, p)


def binomial_noise(accuracy: float, images: int, level: float = LEVEL) -> float:
    """Half-width of the (Wilson) interval of an accuracy measured on so many images; in points.

    >>> round(binomial_noise(99.2, 10_000), 2)
    0.18
    """
    right = round(accuracy / 100 * images)
    bounds = stats.binomtest(right, images).proportion_ci(level, method="wilson")
    return float(100 * (bounds.high - bounds.low) / 2)


def difference_noise(
    pairs: Sequence[tuple[Collection[int], Collection[int]]], images: int, level: float = LEVEL
) -> float:
    """Half-width of the interval of a mean difference of accuracies on the same images; in points.

    A pair of networks is given by the images that each gets wrong. What counts is by how much the
    pairs disagree about an image on average (normal approximation).

    >>> round(difference_noise([(range(50), range(50, 100))], 10_000), 2)
    0.2
    """
    disagreement = np.zeros(images)
    for first, second in pairs:
        disagreement[list(first)] += 1 / len(pairs)
        disagreement[list(second)] -= 1 / len(pairs)
    half = stats.norm.ppf((1 + level) / 2) * disagreement.std() / math.sqrt(images)
    return float(100 * half)
