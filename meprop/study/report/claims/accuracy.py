"""Claims about accuracy: differences between configurations, paired by seed."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean, stdev

from meprop.study import paper
from meprop.study.report import tables
from meprop.study.report.claims.evidence import Evidence, epochs_to, gap, test
from meprop.study.report.claims.judging import judge, over_seeds, table_of
from meprop.study.report.claims.verdicts import (
    NOT_SUPPORTED,
    NOT_TESTED,
    SUPPORTED,
    UNDECIDED,
    Verdict,
    better,
    more_seeds,
    not_worse,
    nothing,
    points,
    together,
)
from meprop.study.report.epochs import late_gap, late_spread, mean_norm_kept
from meprop.study.report.statistics import paired

CONVERGED = 99.0  # percent of the development set


@judge("suffices", "suffices-bn")
def suffices(evidence: Evidence, key: str) -> Verdict:
    number = table_of(key)
    rows = [row for row in paper.table(number) if row.k == paper.paper()["ratio"]["percent"]]
    found = {row.label: evidence.pair(row.name, f"table{number}-baseline") for row in rows}
    verdict = over_seeds(evidence, found, not_worse, [-evidence.margin])
    kept = "; ".join(
        f"{row.label}, {mean_norm_kept(records.values())}"
        for row in rows
        if (records := evidence.of(row.name))
    )
    shown = f" Of the norm of the gradient these rows pass on, on average: {kept}." if kept else ""
    return replace(verdict, numbers=verdict.numbers + shown)


@judge("beats-baseline")
def beats_baseline(evidence: Evidence, key: str) -> Verdict:
    outcomes, open_ones, parts = [], [], []
    differences = {}
    for number in tables.TABLES:
        compared = [row for row in tables.compare(number, evidence.paper)[1:] if row.paper]
        above = 0
        for row in compared:
            found = evidence.pair(row.name, f"table{number}-baseline")
            differences[f"Table {number}, {row.label}"] = found
            above += found.mean > 0
            outcome = better(found, evidence.margin)
            # What is told apart alone may not be any more among six comparisons.
            if outcome == SUPPORTED and not row.p < evidence.alpha:
                outcome = UNDECIDED
            outcomes.append(outcome)
            open_ones += [found] if outcome == UNDECIDED else []
        done = sum(bool(row.difference.n) for row in compared)
        told = sum(row.p < evidence.alpha and row.difference.mean > 0 for row in compared)
        parts.append(
            f"Table {number}: {above} of {done} trained settings above the baseline, "
            f"{told} of them distinguishably"
        )
    outcome = together(outcomes)
    if set(outcomes) == {NOT_TESTED}:
        return nothing("settings of Tables 2 and 3")
    more = None
    if outcome == UNDECIDED:
        more = more_seeds(open_ones, [0.0, evidence.margin], evidence.level)
    return Verdict(outcome, f"{'; '.join(parts)}. {evidence.noise}", more, differences)


@judge("overfits")
def overfits(evidence: Evidence, key: str) -> Verdict:
    rows = [row for row in paper.table(2) if row.k == paper.paper()["ratio"]["percent"]]
    found = {
        f"train - test, baseline minus {row.label}": evidence.pair("table2-baseline", row.name, gap)
        for row in rows
    }
    verdict = over_seeds(evidence, found, better, [0.0, evidence.margin])
    shown = ""
    for what, value in (
        ("dev - test", lambda record: gap(record, "dev")),
        ("train - test as a mean of the last ten epochs", late_gap),
    ):
        also = [
            f"{row.label} {points(its)}"
            for row in rows
            if (its := evidence.pair("table2-baseline", row.name, value)).n
        ]
        shown += f" The same of {what}, baseline minus: {'; '.join(also)}." if also else ""
    return replace(verdict, numbers=verdict.numbers + shown, differences={})  # gaps, not accuracies


@judge("like-dropout")
def like_dropout(evidence: Evidence, key: str) -> Verdict:
    sizes = {
        "1,000": ("overfitting-n1000-k100", "overfitting-n1000-k05", "overfitting-n1000-dropout"),
        "5,000": ("ratio-k100", "ratio-k05", "overfitting-dropout"),
    }
    narrowed = {
        f"gap narrowed with {images} images by {what}": evidence.pair(baseline, name, gap)
        for images, (baseline, *others) in sizes.items()
        for what, name in zip(("5%", "dropout"), others, strict=True)
    }
    verdict = over_seeds(evidence, narrowed, better, [0.0, evidence.margin])
    verdict = replace(verdict, differences={})  # of gaps, not of accuracies
    if verdict.outcome != NOT_SUPPORTED:
        return verdict
    # Only "dropout does, and 5% does not" speaks against the likeness.
    for images in sizes:
        ours, dropout = (
            better(narrowed[f"gap narrowed with {images} images by {what}"], evidence.margin)
            for what in ("5%", "dropout")
        )
        if (ours, dropout) == (NOT_SUPPORTED, SUPPORTED):
            return verdict
    return replace(verdict, outcome=UNDECIDED)


@judge("decay-helps", "decay-helps-bn")
def decay_helps(evidence: Evidence, key: str) -> Verdict:
    number = table_of(key)
    with_decay: dict[int, list[float]] = {}
    ratios = []
    for row in paper.table(number):
        if row.decay == paper.paper()["decays"]["better"]:
            without = evidence.of(row.name.replace("-d06", "-d0"))
            ratios += [f"{row.k:g}%"] if without.keys() & evidence.of(row.name).keys() else []
            for seed, record in evidence.of(row.name).items():
                if seed in without:
                    with_decay.setdefault(seed, []).append(test(record) - test(without[seed]))
    means = {seed: fmean(values) for seed, values in with_decay.items()}
    found = paired(means, dict.fromkeys(means, 0.0), evidence.level)
    what = f"0.6 minus 0, at {', '.join(ratios) or 'any ratio'}"
    return over_seeds(evidence, {what: found}, better, [0.0, evidence.margin])


@judge("decay-stable")
def decay_stable(evidence: Evidence, key: str) -> Verdict:
    found, spreads = {}, []
    for number, words in ((2, "without BN"), (3, "with BN")):
        less = (f"table{number}-k05-d0", f"table{number}-k05-d06")
        found[f"{words}, late spread at decay 0 minus 0.6"] = evidence.pair(*less, late_spread)
        over = [
            f"{stdev(test(r) for r in records.values()):.3f}"
            for name in less
            if len(records := evidence.of(name)) > 1
        ]
        if len(over) == 2:
            spreads.append(f"{words}, standard deviation over seeds {' and '.join(over)}")
    # A spread that is smaller by any amount would do: the margin is for accuracies.
    verdict = over_seeds(evidence, found, better, [0.0], margin=0.0)
    shown = f" {'; '.join(spreads)}." if spreads else ""
    return replace(verdict, numbers=verdict.numbers + shown)


@judge("decay-too-high")
def decay_too_high(evidence: Evidence, key: str) -> Verdict:
    found = {
        words: evidence.pair(f"table{number}-k05-d06", f"table{number}-k05-d09")
        for number, words in ((2, "without BN, 0.6 minus 0.9"), (3, "with BN, 0.6 minus 0.9"))
    }
    return over_seeds(evidence, found, better, [0.0, evidence.margin])


@judge("bn-faster")
def bn_faster(evidence: Evidence, key: str) -> Verdict:
    sooner = evidence.pair(
        "table2-baseline", "table3-baseline", lambda r: epochs_to(r, CONVERGED), step=1.0
    )
    if not sooner.n:
        return nothing("a baseline with and one without batch normalisation, of one seed")
    outcome = better(sooner, margin=1.0)
    epochs = [
        ", ".join(f"{epochs_to(r, CONVERGED):g}" for r in evidence.of(name).values())
        for name in ("table2-baseline", "table3-baseline")
    ]
    numbers = f"First epoch at {CONVERGED:g}% or more: {epochs[0]} without, {epochs[1]} with."
    more = more_seeds([sooner], [0.0, 1.0], evidence.level) if outcome == UNDECIDED else None
    return Verdict(outcome, numbers, more)


@judge("bn-higher")
def bn_higher(evidence: Evidence, key: str) -> Verdict:
    found = {"BN minus none": evidence.pair("table3-baseline", "table2-baseline")}
    return over_seeds(evidence, found, better, [0.0, evidence.margin])


@judge("bn-sparse-beats-full")
def bn_sparse_beats_full(evidence: Evidence, key: str) -> Verdict:
    found = {
        row.label: evidence.pair(row.name, "table3-baseline")
        for row in paper.table(3)
        if row.k == paper.paper()["ratio"]["percent"]
    }
    return over_seeds(evidence, found, better, [0.0, evidence.margin])


@judge("sparse-fc-hurts")
def sparse_fc_hurts(evidence: Evidence, key: str) -> Verdict:
    found = {"1%, convolutions alone minus fc1 too": evidence.pair("ratio-k01", "fc1-k01")}
    return over_seeds(evidence, found, better, [0.0, evidence.margin])


@judge("layers-differ")
def layers_differ(evidence: Evidence, key: str) -> Verdict:
    found = evidence.pair("layers-conv1", "layers-conv2")
    if not found.n:
        return nothing("selection at conv1 alone and at conv2 alone")
    outcome = UNDECIDED
    if found.known:
        if found.low > 0 or found.high < 0:
            outcome = SUPPORTED
        elif -evidence.margin < found.low and found.high < evidence.margin:
            outcome = NOT_SUPPORTED
    more = more_seeds([found], [0.0], evidence.level) if outcome == UNDECIDED else None
    what = "conv1 alone minus conv2 alone"
    return Verdict(outcome, f"{what}: {points(found)}. {evidence.noise}", more, {what: found})


@judge("per-map")
def per_map(evidence: Evidence, key: str) -> Verdict:
    found = {"map minus mixed": evidence.pair("ratio-k05", "scope-mixed")}
    return over_seeds(evidence, found, better, [0.0, evidence.margin])
