"""The ledger: every claim of the paper, the rule fixed beforehand, and what came out."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml

from meprop.study import paper
from meprop.study.report.claims import accuracy, gradients, speed  # their judges enter themselves
from meprop.study.report.claims.evidence import Evidence
from meprop.study.report.claims.judging import JUDGES
from meprop.study.report.claims.own import own
from meprop.study.report.claims.verdicts import VERDICTS, Verdict
from meprop.study.report.statistics import MARGIN

__all__ = ["JUDGES", "VERDICTS", "Claim", "Evidence", "Judged", "Verdict", "claims", "ledger"]
_ENTERED = (accuracy, gradients, speed)


@dataclass(frozen=True)
class Claim:
    """A claim in our words, with its place in the paper and the rule that decides it."""

    key: str
    claim: str
    where: str
    own: str  # what the paper's own numbers say to it
    rule: str
    data: str
    ours: bool = False  # a question that the paper does not ask


@dataclass(frozen=True)
class Judged:
    """A claim and its verdict."""

    claim: Claim
    verdict: Verdict


def claims(margin: float = MARGIN, alpha: float = 0.05) -> list[Claim]:
    """All claims, with the numbers that their rules leave open.

    >>> claims()[0].where
    'Abstract, Section 4.3'
    """
    source = files("meprop.study.report.claims").joinpath("claims.yml")
    numbers = {"margin": f"{margin:.2f}", "level": f"{100 * (1 - alpha):g}%"}
    found = []
    for key, entry in yaml.safe_load(source.read_text(encoding="utf-8")).items():
        ours = entry.pop("ours", False)
        words = {name: _fill(text, key, numbers) for name, text in entry.items()}
        words["own"] = own(key) or words.get("own", "")
        found.append(Claim(key=key, ours=ours, **words))
    return found


def _fill(text: str, key: str, numbers: dict[str, str]) -> str:
    if key.startswith("density-"):
        _, activation, layer = key.split("-")
        numbers = numbers | {"figure": str(paper.paper()["densities"][activation][layer])}
    return text.format(**numbers)


def ledger(evidence: Evidence | None = None, **numbers: Any) -> list[Judged]:
    """Every claim with its verdict, from the committed records.

    >>> sorted({judged.verdict.outcome for judged in ledger()} - set(VERDICTS))
    []
    """
    evidence = evidence or Evidence(**numbers)
    every = claims(evidence.margin, evidence.alpha)
    return [Judged(claim, JUDGES[claim.key](evidence)) for claim in every]
