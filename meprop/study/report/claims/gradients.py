"""Claims about gradients: how many are zero, by themselves and after selection."""

from __future__ import annotations

from statistics import fmean

from meprop.study import paper
from meprop.study.record import Record
from meprop.study.report import sparsity, turnover
from meprop.study.report.claims.evidence import Evidence, mean_share
from meprop.study.report.claims.judging import judge, table_of
from meprop.study.report.claims.verdicts import (
    NOT_SUPPORTED,
    SUPPORTED,
    UNDECIDED,
    Verdict,
    nothing,
)

DENSITIES = [
    f"density-{activation}-{layer}"
    for activation in ("relu", "sigmoid")
    for layer in ("conv1", "conv2", "fc1")
]


@judge(*DENSITIES)
def density(evidence: Evidence, key: str) -> Verdict:
    _, activation, layer = key.split("-")
    figure = paper.paper()["densities"][activation][layer]
    curves = [curve for curve in evidence.curves if curve.config.activation == activation]
    if not curves:
        return nothing("a committed density curve")
    by_step: dict[int, list[float]] = {}
    for curve in curves:
        for point in curve.points:
            by_step.setdefault(point["step"], []).append(point["layers"][layer]["before"])
    means = {step: fmean(shares) for step, shares in sorted(by_step.items())}
    near = [
        step
        for step, share in means.items()
        if abs(share - figure) <= min(sparsity.POINTS, sparsity.SHARE * figure)
    ]
    first, last = min(means), max(means)
    numbers = f"{means[first]:.0f}% at step {first}, {means[last]:.0f}% at step {last}"
    seeds = f"{len(curves)} seed{'s' if len(curves) > 1 else ''}"
    if not near:
        return Verdict(NOT_SUPPORTED, f"{numbers}, and never near {figure}% ({seeds}).")
    return Verdict(
        SUPPORTED,
        f"{numbers}; near {figure}% at {len(near)} of the {len(means)} measured steps, the first "
        f"of them {near[0]} and the last {near[-1]} ({seeds}).",
    )


@judge("pooling-cap")
def pooling_cap(evidence: Evidence, key: str) -> Verdict:
    cap = paper.paper()["pooling"]["cap"] / 100
    shares = [
        epoch["layers"][layer]["before"]
        for results in (evidence.paper, evidence.ablation)
        for record in results.records.values()
        if not record.config.batch_norm
        for epoch in record.history
        for layer in ("conv1", "conv2")
    ]
    if not shares:
        return nothing("any record without batch normalisation")
    outcome = SUPPORTED if max(shares) <= cap else NOT_SUPPORTED
    return Verdict(outcome, f"The largest of {len(shares):,} shares is {100 * max(shares):.2f}%.")


@judge("five-is-twenty", "five-is-twenty-bn")
def five_is_twenty(evidence: Evidence, key: str) -> Verdict:
    records = evidence.of(f"table{table_of(key)}-k05-d0")
    if not records:
        return nothing(f"a run of 5% with decay 0 of Table {table_of(key)}")
    kept = {
        layer: fmean(
            mean_share(record, layer, "after") / mean_share(record, layer, "before")
            for record in records.values()
        )
        for layer in ("conv1", "conv2")
    }
    within = all(0.15 <= share <= 0.25 for share in kept.values())
    words = " and ".join(f"{100 * share:.0f}% at {layer}" for layer, share in kept.items())
    return Verdict(
        SUPPORTED if within else NOT_SUPPORTED,
        f"Selection keeps {words} of the nonzero entries (mean share after it, divided by that "
        "before).",
    )


@judge("decay-fixes")
def decay_fixes(evidence: Evidence, key: str) -> Verdict:
    if (found := turnover.counts()) is None:
        return nothing(f"{turnover.FILE}, which `python -m meprop.study.report.turnover` makes")
    table = turnover.summary(found[0])
    ever = {
        (row.layer, row.decay): row.ever
        for row in table[~table["batch_norm"]].itertuples(index=False)
    }
    high = paper.paper()["decays"]["worse"]
    fixed = [
        ever[name, high] < 50 and all(ever[name, high] < ever[name, lower] for lower in (0.0, 0.6))
        for name in ("conv1", "conv2")
    ]
    most = [ever[name, high] >= 90 for name in ("conv1", "conv2")]
    outcome = SUPPORTED if all(fixed) else NOT_SUPPORTED if any(most) else UNDECIDED
    words = "; ".join(
        f"{name}: "
        + ", ".join(f"{ever[name, decay]:.0f}% with {decay:g}" for decay in (0, 0.6, high))
        for name in ("conv1", "conv2")
    )
    numbers = (
        f"Ever chosen over {turnover.STEPS} steps, an epoch of the ablations (one seed, without "
        f"batch normalisation), {words}."
    )
    return Verdict(outcome, numbers, lacking="between the two lines of the rule")


@judge("conv-weights-dense")
def conv_weights_dense(evidence: Evidence, key: str) -> Verdict:
    records = evidence.of("fc1-k05")
    if not records:
        return nothing("a run with selection in fc1 too, 5%")
    shares = _weights(records, "conv1", "conv2", "fc1")
    holds = shares["conv1"] > 0.5 and shares["conv2"] > 0.5 and shares["fc1"] < 0.5
    words = ", ".join(f"{layer} {100 * share:.0f}%" for layer, share in shares.items())
    numbers = f"Nonzero weight gradients: {words}."
    settings = {"5%": "table2-k05-d0", "all gradients": "table2-baseline"}
    parts = []
    for setting, name in settings.items():
        if found := evidence.of(name):
            each = _weights(found, "conv1", "conv2")
            own = " and ".join(f"{layer} {100 * share:.0f}%" for layer, share in each.items())
            parts.append(f"with {setting}, {own}")
    if parts:
        numbers += f" In Table 2, which the rule does not read: {'; '.join(parts)}."
    return Verdict(SUPPORTED if holds else NOT_SUPPORTED, numbers)


@judge("only-k-rows")
def only_k_rows(evidence: Evidence, key: str) -> Verdict:
    records = evidence.of("fc1-k05")
    if not records:
        return nothing("a run with selection in fc1 too, 5%")
    share = _changed(records)
    outcome = SUPPORTED if share < 0.5 else NOT_SUPPORTED
    weight = _weights(records, "fc1")["fc1"]
    numbers = (
        f"A step of Adam changes {100 * share:.0f}% of all parameters; "
        f"{100 * weight:.0f}% of fc1's weight gradient are nonzero."
    )
    if baseline := evidence.of("ratio-k100"):
        numbers += (
            f" For scale: with all gradients, a step changes {100 * _changed(baseline):.0f}%. What "
            "the two have in common is not the selection's doing."
        )
    parts = [
        f"{100 * _changed(found):.0f}% in Table {number}"
        for number in (2, 3)
        if (found := evidence.of(f"table{number}-k05-d0"))
    ]
    if parts:
        numbers += f" Without selection in fc1, at 5%: {', '.join(parts)}."
    return Verdict(outcome, numbers)


def _weights(records: dict[int, Record], *layers: str) -> dict[str, float]:
    """The nonzero share of each layer's weight gradient, averaged over epochs and seeds."""
    return {
        layer: fmean(mean_share(record, layer, "weight") for record in records.values())
        for layer in layers
    }


def _changed(records: dict[int, Record]) -> float:
    """The share of all parameters that a step changed, averaged over the epochs."""
    return fmean(epoch["changed"] for record in records.values() for epoch in record.history)
