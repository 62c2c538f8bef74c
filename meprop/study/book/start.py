"""The pieces of the Start page: answers in numbers, the scoreboard of claims, the studies."""

from __future__ import annotations

import html

from meprop.study.book.tables import table
from meprop.study.experiments import ROOT, load
from meprop.study.report import headline
from meprop.study.report.claims import Judged, ledger
from meprop.study.report.claims.verdicts import (
    NOT_SUPPORTED,
    NOT_TESTED,
    SUPPORTED,
    UNDECIDED,
    VERDICTS,
)

# Not by colour alone.
SIGNS = {SUPPORTED: "✓", NOT_SUPPORTED: "✗", UNDECIDED: "?", NOT_TESTED: "·"}


def answers() -> str:
    """The headline numbers as cards (HTML in MyST)."""
    cards = [
        f'<li><p class="question">{html.escape(answer.question)}</p>'
        f'<p class="number">{html.escape(answer.number)}</p>'
        f"<p>{html.escape(answer.sentence)}</p></li>"
        for answer in headline.answers()
    ]
    return f'<ul class="answers">\n{"".join(cards)}\n</ul>'


def scoreboard() -> str:
    """How many claims of the paper have which verdict, and each claim under its own (HTML in MyST).

    What is decided is in sight, the rest folds away.
    """
    by_verdict: dict[str, list[Judged]] = {verdict: [] for verdict in VERDICTS}
    for judged in ledger():
        by_verdict[judged.verdict.outcome].append(judged)
    parts = [_tally({verdict: len(found) for verdict, found in by_verdict.items()})]
    for verdict, found in by_verdict.items():
        if found:
            claims = "".join(f"<li>{_claim(judged)}</li>" for judged in found)
            title = f"{SIGNS[verdict]} {verdict.capitalize()}"
            opened = " open" if verdict in (SUPPORTED, NOT_SUPPORTED) else ""
            parts.append(
                f'<details class="claims {_slug(verdict)}"{opened}><summary>{title}</summary>'
                f"<ul>{claims}</ul></details>"
            )
    board = "".join(parts)
    more = "[The ledger](../notebooks/06-claims.ipynb) has the rule and the numbers of each."
    page = (ROOT / "notebooks" / "06-claims.ipynb").is_file()
    return f'<div class="scoreboard">{board}</div>' + (f"\n\n{more}" if page else "")


def _tally(counts: dict[str, int]) -> str:
    items = "".join(
        f'<li class="{_slug(verdict)}"><b>{count}</b> {verdict}</li>'
        for verdict, count in counts.items()
    )
    return f'<ul class="tally">{items}</ul>'


def _claim(judged: Judged) -> str:
    where = html.escape(judged.claim.where)
    return f'{html.escape(judged.claim.claim)} <span class="where">{where}</span>'


def _slug(verdict: str) -> str:
    return verdict.replace(" ", "-")


def studies_list() -> str:
    """The studies of the ablation suite, each linked to its page where there is one (MyST)."""
    rows = []
    for study in load().studies.values():
        made = f"pages/ablation-{study.name}" if study.name != "ratio" else "04-ablations"
        page = f"notebooks/{made}.ipynb"
        name = f"[{study.name}](../{page})" if (ROOT / page).is_file() else f"`{study.name}`"
        rows.append((name, study.about, str(len(study.runs))))
    return table("studies", "The studies.", ("study", "question", "settings"), rows)
