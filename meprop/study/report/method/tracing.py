"""A selection from step to step: what run_grad does to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from meprop import TopK, select
from meprop.study.report.probe import Probe

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Trace:
    """Some steps of training under several decays, as seen at one layer.

    magnitudes, run_grads, selected: for every step, of some entries, under `decay`.
    summary: for every decay and step, in percent: `again` (how many of the selected entries were
    selected in the step before) and `empty` (how many have no gradient now).
    """

    decay: float
    first: int  # step
    magnitudes: Tensor  # steps x entries
    run_grads: Tensor
    selected: Tensor
    summary: DataFrame


def trace(
    probe: Probe, rule: TopK, decays: Sequence[float], steps: int = 24, layer: str = "conv1"
) -> Trace:
    """Train on, and select at a layer as the rule would under each decay, without effect.

    The entries followed are those whose selection under the rule's own decay changes most often.
    """
    import pandas

    rules = {decay: TopK(rule.ratio, decay, rule.scope) for decay in (rule.decay, *decays)}
    past: dict[float, tuple[Tensor | None, Tensor | None]] = dict.fromkeys(rules, (None, None))
    seen, rows = [], []
    with probe.surroundings(), probe.caught([layer]) as found:
        for step in range(steps):
            probe.advance()
            grad = found[layer].contiguous()
            for decay, each in rules.items():
                history, before = past[decay]
                mask, history = select(grad, each, history)
                row = {"decay": decay, "step": step, "empty": percent(grad[mask] == 0)}
                if before is not None:
                    row["again"] = percent(before[mask])
                rows.append(row)
                past[decay] = (history, mask)
                if decay == rule.decay:
                    score = grad.abs() if history is None else history
                    seen.append((grad.abs().flatten(), score.flatten(), mask.flatten()))
    magnitudes, run_grads, selected = (torch.stack(each) for each in zip(*seen, strict=True))
    changes = (selected[1:] != selected[:-1]).sum(dim=0)
    entries = changes.argsort(descending=True, stable=True)[:3]
    return Trace(
        decay=rule.decay,
        first=probe.steps - steps + 1,
        magnitudes=magnitudes[:, entries],
        run_grads=run_grads[:, entries],
        selected=selected[:, entries],
        summary=pandas.DataFrame(rows),
    )


def trace_in_words(found: Trace) -> str:
    """What the decays do to a selection, as a table and a sentence."""
    means = found.summary.groupby("decay")[["again", "empty"]].mean()
    lines = [
        "| decay | selected again in the next step | selected, but zero now |",
        "|---:|---:|---:|",
    ]
    for decay, row in means.iterrows():
        lines.append(f"| {decay:g} | {row['again']:.0f}% | {row['empty']:.0f}% |")
    own = means.loc[found.decay]
    return "\n".join(lines) + (
        f"\n\nWith a decay of {found.decay:g}, {own['again']:.0f}% of the selected entries are "
        f"selected again in the next step, and {own['empty']:.0f}% of the selected have no "
        "gradient to pass on: that part of the quota is spent on the past."
    )


def check_trace(found: Trace) -> None:
    """Assert what holds of a trace on every machine."""
    means = found.summary.groupby("decay")[["again", "empty"]].mean()
    assert means["again"].is_monotonic_increasing and means["empty"].is_monotonic_increasing
    assert means["empty"].between(0, 100).all()


def percent(values: Tensor) -> float:
    return 100 * float(values.double().mean())
