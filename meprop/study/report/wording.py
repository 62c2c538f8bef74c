"""Numbers in tables and sentences: one form each."""

from __future__ import annotations

import math
from collections.abc import Iterable

from meprop.study.report.statistics import Interval

NONE = "-"  # in a cell for which there is nothing yet


def spread(found: Interval) -> str:
    """`99.12`, with its interval where there is one: `99.12 (98.90 to 99.34)`."""
    bounds = f" ({found.low:.2f} to {found.high:.2f})" if found.known else ""
    return NONE if math.isnan(found.mean) else f"{found.mean:.2f}{bounds}"


def signed(found: Interval) -> str:
    """A difference, with its sign and interval: `+0.05 (-0.02 to +0.12)`."""
    bounds = f" ({points(found.low)} to {points(found.high)})" if found.known else ""
    return NONE if math.isnan(found.mean) else f"{points(found.mean)}{bounds}"


def over(found: Iterable[Interval]) -> str:
    """What differences rest on: `over 3 seeds`, or `over up to 3 seeds` where some have fewer."""
    counts = {each.n for each in found}
    return f"over {'up to ' if len(counts) > 1 else ''}{max(counts)} seeds"


def points(value: float) -> str:
    """A difference in points, with its sign.

    >>> points(-0.051), points(0.001)
    ('-0.05', '0.00')
    """
    text = f"{value:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text


def probability(p: float) -> str:
    """A probability with three decimals.

    >>> probability(0.0312), probability(0.00001), probability(math.nan)
    ('0.031', '< 0.001', '-')
    """
    if math.isnan(p):
        return NONE
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"
