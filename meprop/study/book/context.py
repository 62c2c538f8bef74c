"""What came after the paper, with headline figures: from book/context.yml."""

from __future__ import annotations

import yaml

from meprop.study.book.tables import table
from meprop.study.experiments import ROOT


def later_work() -> str:
    """A table of works: what each leaves out, its own headline, the difference (MyST)."""
    works = yaml.safe_load((ROOT / "book" / "context.yml").read_text(encoding="utf-8"))
    rows = [
        (f"{{cite:t}}`{work['key']}`", work["sparse"], work["headline"], work["differs"])
        for work in works
    ]
    heads = ("work", "what is left out", "its own headline", "how it differs")
    return table("later-work", "Sparse backward passes after the paper.", heads, rows)
