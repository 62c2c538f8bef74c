"""What there is of a study: its question, its tables, and chance (Markdown)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from meprop.study.data import DATASETS
from meprop.study.report.ablations.study import BELOW, GAPS, Ablation
from meprop.study.report.paper import paper
from meprop.study.report.statistics import (
    binomial_noise,
    difference_noise,
    discordant,
    interval,
    percentage,
)
from meprop.study.report.wording import NONE, probability, signed, spread
from meprop.study.words import listed


def about(ablation: Ablation) -> str:
    """The question, what is varied, what each run is compared with, and which runs there are."""
    study = ablation.study
    varied = listed(f"`{name}`" for name in study.varies)
    text = f"**{study.about}** The runs of the study `{study.name}` differ in {varied}."
    named = {
        row.reference: ablation.row(row.reference).label for row in ablation.rows if row.reference
    }
    if named:
        same = f" Only runs that agree in {listed(f'`{n}`' for n in study.within)} are compared."
        text += f" Reference: {'; '.join(named.values())}.{same if study.within else ''}"
    return f"{text} {_trained_on(ablation)} {ablation.results.coverage()}"


def _trained_on(ablation: Ablation) -> str:
    configs = [run.config for run in ablation.results.runs]
    images = sorted({config.train_size or DATASETS[config.dataset].train for config in configs})
    epochs = sorted({config.epochs for config in configs})
    return (
        f"Every run learns from {listed((f'{size:,}' for size in images), 'or')} images, for "
        f"{listed(epochs, 'or')} epochs."
    )


def scores(ablation: Ablation) -> str:
    """A Markdown table: accuracies over the seeds, and the difference to the reference."""
    lines = [
        "| configuration | seeds | test accuracy (%) | difference (points) | p (Holm) "
        "| dev accuracy (%) | best epoch |",
        "| :-- | --: | --: | --: | --: | --: | --: |",
    ]
    referred = {row.reference for row in ablation.rows}
    for row in ablation.rows:
        difference = signed(row.difference)
        if row.reference is None and row.name in referred:
            difference = "reference"
        dev = NONE if math.isnan(row.dev.mean) else f"{row.dev.mean:.2f}"
        lines.append(
            f"| {row.label} | {len(row.records)} | {spread(row.test)} | {difference} "
            f"| {probability(row.p)} | {dev} | {_from_to(row.epochs)} |"
        )
    return "\n".join(lines)


def _from_to(values: Sequence[int]) -> str:
    ends = sorted({min(values), max(values)}) if values else []
    return " to ".join(map(str, ends)) or NONE


def gaps(ablation: Ablation) -> str:
    """A Markdown table: the distances between training, development and test accuracy."""
    lines = [
        "| configuration | train accuracy (%) | train - dev (points) | dev - test (points) |",
        "| :-- | --: | --: | --: |",
    ]
    for row in ablation.done:
        cells = [row.label, spread(percentage(list(row.accuracy("train").values())))]
        cells += [signed(interval(list(row.gap(*gap).values()))) for gap in GAPS]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) if ablation.done else "No run is done yet."


def gradients(ablation: Ablation) -> str:
    """A Markdown table: nonzero share before and after selection, and the share of norm kept."""
    layers = [
        layer
        for layer in ablation.layers
        if any(not math.isnan(row.layer(layer, "before")) for row in ablation.done)
    ]
    if not layers:
        return "No run is done yet."
    titles = [_LAYERS.get(layer, layer) for layer in layers]
    head = " | ".join(f"{title}: before | after | norm kept" for title in titles)
    lines = [f"| configuration | {head} |", "| :-- |" + " --: |" * 3 * len(layers)]
    for row in ablation.done:
        cells = [row.label]
        for layer in layers:
            for what in ("before", "after", "norm_kept"):
                value = row.layer(layer, what)
                cells.append(NONE if math.isnan(value) else f"{value:.3g}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


_LAYERS = {layer: f"{below} above BN" for layer, below in BELOW.items()}


def noise(ablation: Ablation) -> str:
    """What chance in the choice of the test images does to an accuracy and to a difference."""
    if not ablation.done:
        return "No run is done yet."
    images = paper()["data"]["test"]
    mean = fmean(row.test.mean for row in ablation.done)
    text = (
        f"For scale: an accuracy of {mean:.2f}%, measured on {images:,} images, has a binomial "
        f"95% interval of ±{binomial_noise(mean, images):.2f} points."
    )
    if counts := _disagreements(ablation):
        count = round(fmean(counts))
        text += (
            f" On average {count} of them are classified rightly by only one of the two networks "
            "of a pair, which by chance lets their difference vary by "
            f"±{difference_noise(count, images):.2f} points."
        )
    return f"{text} All seeds are tested on the same images, so more seeds do not reduce it."


def _disagreements(ablation: Ablation) -> list[int]:
    counts = []
    for row in ablation.compared:
        other = ablation.row(row.reference or "")
        for seed in row.records.keys() & other.records.keys():
            found = discordant(
                row.records[seed].test_errors or (), other.records[seed].test_errors or ()
            )
            counts.append(found.only_first + found.only_second)
    return counts
