"""The pieces of the Start page: answers in numbers, the scoreboard of claims, the studies."""

from __future__ import annotations

import html
from collections import Counter
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from meprop.study.experiments import ROOT, load
from meprop.study.report import headline

VERDICTS = ("supported", "not supported", "undecided", "not tested")


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
    """How many claims of the paper have which verdict, and each claim with its own (MyST)."""
    claims = _ledger()
    if not claims:
        return "The ledger of claims is not written yet."
    counts = Counter(claim.verdict for claim in claims)
    tally = "".join(
        f'<li class="{verdict.replace(" ", "-")}"><b>{counts[verdict]}</b> {verdict}</li>'
        for verdict in VERDICTS
    )
    return f'<ul class="tally">{tally}</ul>'


def _ledger() -> list[Any]:
    if find_spec("meprop.study.report.claims") is None:
        return []
    return list(import_module("meprop.study.report.claims").ledger())


def studies_list() -> str:
    """The studies of the ablation suite, each linked to its page where there is one (MyST)."""
    lines = []
    for study in load().studies.values():
        page = f"notebooks/pages/ablation-{study.name}.ipynb"
        name = f"[{study.name}](../{page})" if (ROOT / page).is_file() else f"`{study.name}`"
        lines.append(f"| {name} | {study.about} | {len(study.runs)} |")
    return "\n".join(["| study | question | settings |", "| --- | --- | --- |", *lines])
