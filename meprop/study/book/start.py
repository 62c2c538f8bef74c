"""The studies of the ablation suite as a table."""

from __future__ import annotations

from meprop.study.book.tables import table
from meprop.study.experiments import ROOT, load


def studies_list() -> str:
    """The studies of the ablation suite, each linked to its page where there is one (MyST)."""
    rows = []
    for study in load().studies.values():
        made = f"pages/ablation-{study.name}" if study.name != "ratio" else "04-ablations"
        page = f"notebooks/{made}.ipynb"
        name = f"[{study.name}](../{page})" if (ROOT / page).is_file() else f"`{study.name}`"
        rows.append((name, study.about, str(len(study.runs))))
    return table("studies", "The studies.", ("study", "question", "settings"), rows)
