"""What another reading of the paper does to the result, where it was measured."""

from __future__ import annotations

from meprop.study.experiments import ROOT, load
from meprop.study.report.results import gather, tests
from meprop.study.report.statistics import Interval, paired
from meprop.study.report.wording import points


def effect(study: str, ours: str, *others: str) -> str:
    """A sentence a reading: its difference in test accuracy to ours, paired by seed (MyST)."""
    declared = load().studies[study]
    results = gather(declared.suite, (ours, *others))
    reference = tests(results.of(ours))
    lines = []
    for other in others:
        found = paired(tests(results.of(other)), reference)
        if not found.n:
            lines.append(f"`{other}`: not trained yet.")
            continue
        lines.append(
            f"`{other}`: {points(found.mean)} points of test accuracy, {over_seeds(found)}."
        )
    page = f"notebooks/pages/ablation-{study}.ipynb"
    where = f" ([{study} study](../{page}))" if (ROOT / page).is_file() else ""
    if not any(tests(results.of(other)).keys() & reference.keys() for other in others):
        names = " and ".join(f"`{other}`" for other in others)
        return f":::{{div}} effect\n\nDeclared as {names}{where}, and not trained yet.\n\n:::"
    said = f"**Measured** against `{ours}`{where}:"
    return "\n".join([":::{div} effect\n", said, "", *(f"- {line}" for line in lines), "", ":::"])


def over_seeds(found: Interval) -> str:
    """How well a mean is known, in words."""
    if not found.known:
        return "one seed, so no more than a description"
    return f"95% interval {points(found.low)} to {points(found.high)}, {found.n} seeds"
