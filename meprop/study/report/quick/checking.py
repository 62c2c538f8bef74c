"""What holds for the quick suite on any machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meprop.study.experiments import Run
from meprop.study.report.quick.comparing import Row


def check_invariants(rows: Sequence[Row]) -> str:
    """Assert what holds on any machine; returns what was checked, in a sentence."""
    for row in rows:
        for record in (row.here, row.reference):
            if record is None:
                continue
            assert record.config == row.run.config, row.label
            assert record.status == "finished", row.label
            assert len(record.history) == row.run.config.epochs, row.label
            for epoch in record.history:
                _check_densities(row.run, epoch["layers"])
        if row.both:
            assert row.here is not None and row.reference is not None
            assert row.here.provenance["data"] == row.reference.provenance["data"], row.label
            assert row.agrees, f"{row.label}: the first epoch's loss differs, {row.loss_difference}"
    if not rows:
        return "There is nothing to check."
    here, both = sum(row.here is not None for row in rows), sum(row.both for row in rows)
    checked = (
        f"Checked: of {here} runs here and {sum(row.reference is not None for row in rows)} of the "
        "reference, every one is of the declared configuration and finished, and no layer passes "
        "back more than its share."
    )
    if both:
        checked += (
            f" Where there are both ({both}), they had the same data, and the losses of the first "
            "epoch agree."
        )
    return checked


def _check_densities(run: Run, layers: Mapping[str, Mapping[str, float]]) -> None:
    ratio = run.config.ratio
    for name in run.config.sparse_layers if ratio is not None else ():
        assert ratio is not None
        # k is rounded, of 1,960 entries of a map at the least.
        assert layers[name]["after"] <= ratio + 1 / 1960, f"{run.name}: {name}"
