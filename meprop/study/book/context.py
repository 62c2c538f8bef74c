"""What came after the paper, with headline figures: from book/context.yml."""

from __future__ import annotations

import yaml

from meprop.study.experiments import ROOT


def later_work() -> str:
    """A table of works: what each leaves out, its own headline, the difference (MyST)."""
    works = yaml.safe_load((ROOT / "book" / "context.yml").read_text(encoding="utf-8"))
    lines = ["| work | what is left out | its own headline | how it differs |", "|---|---|---|---|"]
    for work in works:
        cells = (work["sparse"], work["headline"], work["differs"])
        lines.append(f"| {{cite:t}}`{work['key']}` | {' | '.join(cells)} |")
    return "\n".join(lines)
