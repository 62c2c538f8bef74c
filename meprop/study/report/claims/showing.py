"""The ledger as tables and paragraphs, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from meprop.study.report.claims import Evidence, Judged
from meprop.study.report.claims.verdicts import (
    NOT_SUPPORTED,
    NOT_TESTED,
    SUPPORTED,
    UNDECIDED,
    VERDICTS,
)
from meprop.study.report.results import INTERIM
from meprop.study.words import listed

# For eyes that run down a column; the word stands beside it.
MARKS = {SUPPORTED: "✓", NOT_SUPPORTED: "✗", UNDECIDED: "?", NOT_TESTED: "·"}


def tally(judged: Sequence[Judged]) -> dict[str, int]:
    """How many claims have each verdict, in a fixed order."""
    outcomes = [each.verdict.outcome for each in judged]
    return {name: outcomes.count(name) for name in VERDICTS}


def in_words(judged: Sequence[Judged]) -> str:
    """The tally as a sentence."""
    counted = [f"{count} {name}" for name, count in tally(judged).items() if count]
    ours = sum(each.claim.ours for each in judged)
    extra = f" of the paper and {ours} question{'s' if ours > 1 else ''} of ours" if ours else ""
    return f"Of {len(judged) - ours} claims{extra}, {listed(counted)}."


def coverage(evidence: Evidence) -> str:
    """How many of the declared runs the verdicts rest on."""
    suites = {"paper": evidence.paper, "ablation": evidence.ablation}
    done = [f"{name}, {len(of.records)} of {len(of.runs)} runs" for name, of in suites.items()]
    missing = any(of.missing for of in suites.values())
    return f"Suites: {'; '.join(done)}.{f' {INTERIM}' if missing else ''}"


def scoreboard(judged: Sequence[Judged]) -> str:
    """A line a claim: what it says, what the paper's own numbers say, and the verdict."""
    lines = ["| claim | in the paper | our verdict |", "| :-- | :-- | :-- |"]
    for each in judged:
        mark = MARKS[each.verdict.outcome]
        lines.append(f"| {each.claim.claim} | {each.claim.where} | {mark} {each.verdict.words} |")
    return "\n".join(lines)


def details(judged: Sequence[Judged]) -> str:
    """Every claim with its rule, the paper's own numbers and ours."""
    parts = []
    for each in judged:
        claim, verdict = each.claim, each.verdict
        parts.append(
            f"**{MARKS[verdict.outcome]} {claim.claim}**\n\n"
            f"- *Paper* ({claim.where}): {claim.own}\n"
            f"- *Rule* (reads: {claim.data}): {claim.rule}\n"
            f"- *Numbers*: {verdict.numbers}\n"
            f"- *Verdict*: {verdict.words}"
        )
    return "\n\n".join(parts)
