"""Claims about cost, from the committed benchmark."""

from __future__ import annotations

from typing import Any

import torch

from meprop.study.config import Config
from meprop.study.report.claims.evidence import Evidence
from meprop.study.report.claims.judging import judge
from meprop.study.report.claims.verdicts import NOT_SUPPORTED, SUPPORTED, Verdict, nothing
from meprop.study.seeding import build

NETWORKS = ("PaperCNN", "PaperCNN-BN")


def _step(evidence: Evidence, network: str, contender: str) -> dict[str, Any] | None:
    """The row of a whole step in its better memory format."""
    for row in evidence.bench:
        found = (row["group"], row["subject"], row["contender"]) == ("step", network, contender)
        if found and row["best"]:
            return row
    return None


@judge("backward-as-forward")
def backward_as_forward(evidence: Evidence, key: str) -> Verdict:
    if (row := _step(evidence, "PaperCNN", "dense")) is None:
        return nothing("a benchmark of whole steps")
    ratio = row["parts"]["backward"] / row["parts"]["forward"]
    outcome = SUPPORTED if 0.8 <= ratio <= 1.25 else NOT_SUPPORTED
    return Verdict(outcome, f"Backward takes {ratio:.1f} times as long as forward.")


@judge("products-dominate")
def products_dominate(evidence: Evidence, key: str) -> Verdict:
    if (parts := evidence.backward_parts) is None:
        return nothing("a benchmark of the parts of a step")
    share = parts["products"] / sum(parts.values())
    outcome = SUPPORTED if share > 0.5 else NOT_SUPPORTED
    return Verdict(outcome, f"They take {100 * share:.0f}% of the backward pass.")


@judge("elementwise-cheap")
def elementwise_cheap(evidence: Evidence, key: str) -> Verdict:
    if (parts := evidence.backward_parts) is None:
        return nothing("a benchmark of the parts of a step")
    share = parts["elementwise"] / parts["products"]
    outcome = SUPPORTED if share < 0.2 else NOT_SUPPORTED
    return Verdict(outcome, f"They take {100 * share:.0f}% of the time of the products.")


@judge("cost-proportional")
def cost_proportional(evidence: Evidence, key: str) -> Verdict:
    if not evidence.cost_lines:
        return nothing("a benchmark of layers at several ratios")
    bad = [
        line["subject"]
        for line in evidence.cost_lines
        if line["r2"] <= 0.95 or line["intercept"] > 0.15
    ]
    words = "; ".join(
        f"{line['subject']}: R2 {line['r2']:.3f}, at zero {line['intercept']:.2f} of dense"
        for line in evidence.cost_lines
    )
    exceptions = f" Exceptions: {', '.join(bad)}." if bad else ""
    return Verdict(NOT_SUPPORTED if bad else SUPPORTED, f"{words}.{exceptions}")


@judge("saves-training")
def saves_training(evidence: Evidence, key: str) -> Verdict:
    rows = {network: _step(evidence, network, "meprop") for network in NETWORKS}
    if None in rows.values():
        return nothing("a benchmark of whole steps")
    spreads = {network: row["speedup"]["dense"] for network, row in rows.items() if row}
    holds = all(spread["q25"] > 1 for spread in spreads.values())
    words = "; ".join(
        f"{network}: {its['median']:.2f} times as fast ({its['q25']:.2f} to {its['q75']:.2f})"
        for network, its in spreads.items()
    )
    exact = {network: _step(evidence, network, "exact") for network in NETWORKS}
    free = ", ".join(
        f"{network} {row['speedup']['dense']['median']:.2f}"
        for network, row in exact.items()
        if row
    )
    numbers = (
        f"One thread, {words}. Without selecting anything, by skipping zeros: {free}."
        if free
        else f"One thread, {words}."
    )
    return Verdict(SUPPORTED if holds else NOT_SUPPORTED, numbers)


@judge("saves-inference")
def saves_inference(evidence: Evidence, key: str) -> Verdict:
    plain = build(Config(dataset="digits")).eval()
    sparse = build(Config(dataset="digits", ratio=0.05)).eval()
    images = torch.rand(10, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        same = torch.equal(plain(images), sparse(images))
    if not same:
        return Verdict(SUPPORTED, "The converted network computes something else.")
    return Verdict(NOT_SUPPORTED, "The outputs are the same, bit for bit, from the same layers.")
