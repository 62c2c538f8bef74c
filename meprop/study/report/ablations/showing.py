"""What there is of a study: its question, its tables, and chance (Markdown)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

from meprop.study.data import DATASETS
from meprop.study.paper import paper
from meprop.study.report.ablations.study import BELOW, GAPS, Ablation, Row
from meprop.study.report.statistics import (
    binomial_noise,
    difference_noise,
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
        test, p = spread(row.test), probability(row.p)
        dev = NONE if math.isnan(row.dev.mean) else f"{row.dev.mean:.2f}"
        if row.stuck:  # no mean says anything
            test, dev = (_each(row.accuracy(part)) for part in ("test", "dev"))
            difference, p = NONE, NONE
        lines.append(
            f"| {row.label} | {len(row.records)} | {test} | {difference} | {p} | {dev} "
            f"| {_from_to(row.epochs)} |"
        )
    return "\n".join(lines)


def _each(values: dict[int, float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values.values())


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
        train = row.accuracy("train")
        if row.stuck:
            cells = [_each(train), *[NONE] * len(GAPS)]
        else:
            cells = [spread(percentage(list(train.values())))]
            cells += [signed(interval(list(row.gap(*gap).values()))) for gap in GAPS]
        lines.append(f"| {' | '.join([row.label, *cells])} |")
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
    learned = [row.test.mean for row in ablation.done if not row.stuck]
    if not learned:
        return "No run is done yet that learned."
    images, middle = paper()["data"]["test"], median(learned)
    text = (
        f"For scale: an accuracy of {middle:.2f}%, measured on {images:,} images, has a binomial "
        f"95% interval of ±{binomial_noise(middle, images):.2f} points."
    )
    if not (pairs := [found for row in ablation.compared if (found := _pairs(ablation, row))]):
        return text
    count = round(fmean(len(set(a) ^ set(b)) for found in pairs for a, b in found))
    one = fmean(difference_noise([pair], images) for found in pairs for pair in found)
    text += (
        f" On average {count} of them are classified rightly by only one of the two networks of a "
        f"pair, which by chance lets their difference vary by ±{one:.2f} points"
    )
    if (most := max(map(len, pairs))) > 1:
        several = fmean(difference_noise(found, images) for found in pairs if len(found) == most)
        text += f", and a mean over {most} seeds by ±{several:.2f}"
    return f"{text}. Part of it stays with any number of seeds: all are tested on the same images."


def _pairs(ablation: Ablation, row: Row) -> list[tuple[Sequence[int], Sequence[int]]]:
    """What a run and its reference get wrong, for each seed with which both learn."""
    other = ablation.row(row.reference or "")
    seeds = row.records.keys() & other.records.keys() - row.stuck.keys() - other.stuck.keys()
    return [
        (row.records[seed].test_errors or (), other.records[seed].test_errors or ())
        for seed in sorted(seeds)
    ]
