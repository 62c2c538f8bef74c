"""A verdict, and how an interval over seeds becomes one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from meprop.study.report import wording
from meprop.study.report.statistics import Interval, seeds_needed

SUPPORTED, NOT_SUPPORTED = "supported", "not supported"
UNDECIDED, NOT_TESTED = "undecided", "not tested"
VERDICTS = (SUPPORTED, NOT_SUPPORTED, UNDECIDED, NOT_TESTED)


@dataclass(frozen=True)
class Verdict:
    """What came out of a rule, the numbers, and for `undecided` how many more seeds would do.

    differences: the intervals of test accuracies that decided, by what they compare. lacking: what
    an open one lacks, if nobody can say how many seeds.
    """

    outcome: str
    numbers: str
    more_seeds: int | None = None
    differences: dict[str, Interval] = field(default_factory=dict)
    lacking: str = "more seeds needed"

    @property
    def words(self) -> str:
        """The outcome, with what would decide it where it is open."""
        if self.outcome != UNDECIDED:
            return self.outcome
        if self.more_seeds is None:
            return f"{UNDECIDED} ({self.lacking})"
        seeds = f"{self.more_seeds} more seed{'s' if self.more_seeds > 1 else ''}"
        return f"{UNDECIDED} (about {seeds} would decide, at this mean and spread)"


def nothing(what: str) -> Verdict:
    """The verdict where what the rule reads is not there yet."""
    return Verdict(NOT_TESTED, f"Not there yet: {what}.")


def better(found: Interval, margin: float) -> str:
    """Above 0: supported. Below the margin: not supported, the advantage is too small to matter."""
    return _sided(found, above=0.0, below=margin)


def not_worse(found: Interval, margin: float) -> str:
    """Non-inferiority: above -margin, supported; below it, not."""
    return _sided(found, above=-margin, below=-margin)


def _sided(found: Interval, above: float, below: float) -> str:
    if found.n == 0:
        return NOT_TESTED
    if not found.known:
        return UNDECIDED
    if found.low > above:
        return SUPPORTED
    return NOT_SUPPORTED if found.high < below else UNDECIDED


def together(outcomes: Sequence[str]) -> str:
    """The outcome of several conditions that all have to hold."""
    if NOT_SUPPORTED in outcomes:
        return NOT_SUPPORTED
    if NOT_TESTED in outcomes:
        return NOT_TESTED
    return SUPPORTED if set(outcomes) <= {SUPPORTED} and outcomes else UNDECIDED


def more_seeds(found: Sequence[Interval], thresholds: Sequence[float], level: float) -> int | None:
    """How many more seeds would decide all of these, each at the threshold that is decided first.

    Taken that mean and spread stay as they are. None if nobody can tell: with one seed there is no
    spread, and what only the number of comparisons keeps open is not reckoned with.
    """
    most = 0
    for each in found:
        needed = [n for t in thresholds if (n := seeds_needed(each, t, level)) is not None]
        if not needed:
            return None
        most = max(most, min(needed) - each.n)
    return most or None


def points(found: Interval) -> str:
    """`+0.05 points (-0.02 to +0.12, 5 seeds)`."""
    if math.isnan(found.mean):
        return "none yet"
    if not found.known:
        return f"{wording.points(found.mean)} points (1 seed)"
    bounds = f"{wording.points(found.low)} to {wording.points(found.high)}"
    return f"{wording.points(found.mean)} points ({bounds}, {found.n} seeds)"
