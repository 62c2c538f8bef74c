"""The rules of claims.yml as functions, each entered under the claims it decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meprop.study.report.claims.evidence import Evidence
from meprop.study.report.claims.verdicts import (
    NOT_TESTED,
    UNDECIDED,
    Verdict,
    more_seeds,
    points,
    together,
)
from meprop.study.report.statistics import Interval

Judge = Callable[[Evidence], Verdict]
JUDGES: dict[str, Judge] = {}


def judge(*keys: str) -> Callable[[Callable[[Evidence, str], Verdict]], None]:
    """Enter a function under the keys of the claims it decides; it gets the key too."""

    def enter(function: Callable[[Evidence, str], Verdict]) -> None:
        for key in keys:
            JUDGES[key] = lambda evidence, key=key: function(evidence, key)  # type: ignore[misc]

    return enter


def table_of(key: str) -> int:
    """The table that a claim is about: those with batch normalisation are named so."""
    return 3 if key.endswith("-bn") or key.startswith("bn-") else 2


def over_seeds(
    evidence: Evidence,
    found: dict[str, Interval],
    rule: Callable[[Interval, float], str],
    thresholds: Sequence[float],
    margin: float | None = None,
) -> Verdict:
    """All of some differences have to pass a rule.

    Without a margin of their own they are differences of accuracies, and beside them stands what
    the choice of the test images alone does to one of these.
    """
    accuracies = found if margin is None else {}
    noise = f" {evidence.noise}" if accuracies and evidence.noise else ""
    margin = evidence.margin if margin is None else margin
    numbers = "; ".join(f"{what}: {points(each)}" for what, each in found.items() if each.n)
    outcomes = [rule(each, margin) for each in found.values()]
    outcome = together(outcomes)
    if outcome == NOT_TESTED:
        missing = "; ".join(what for what, each in found.items() if not each.n)
        there = f"{numbers}.{noise} " if numbers else ""
        return Verdict(NOT_TESTED, f"{there}Not there yet: {missing}.", differences=accuracies)
    open_ones = [each for each in found.values() if rule(each, margin) == UNDECIDED]
    more = more_seeds(open_ones, thresholds, evidence.level) if outcome == UNDECIDED else None
    return Verdict(outcome, f"{numbers}.{noise}", more, accuracies)
