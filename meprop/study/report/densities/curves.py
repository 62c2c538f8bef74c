"""Density curves of several seeds, and how they go on over whole runs."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import TYPE_CHECKING

from meprop.study.data import DATASETS
from meprop.study.paper import paper
from meprop.study.report.results import gather
from meprop.study.report.sparsity import LAYERS, SEEDS, STEPS, Curve, configuration, curve, path_of
from meprop.study.words import listed

if TYPE_CHECKING:
    from pandas import DataFrame


def curves(
    dataset: str, activation: str, batch_norm: bool, seed: int, steps: int
) -> dict[int, Curve]:
    """The curve of a seed, and those of the committed seeds beside it, up to some step.

    What is not committed is measured now; that is the asked seed, if any.
    """
    wanted = configuration(dataset, activation, batch_norm, seed)
    found = {seed: curve(wanted, steps)}
    if steps <= STEPS:
        for other in SEEDS:
            config = configuration(dataset, activation, batch_norm, other)
            if other not in found and path_of(config).exists():
                found[other] = curve(config, steps)
    return dict(sorted(found.items()))


def origin(found: Mapping[int, Curve]) -> str:
    """Where curves come from, in a sentence."""
    config = next(iter(found.values())).config
    last = max(each.points[-1]["step"] for each in found.values())
    name = {"mnist": "MNIST", "digits": "the embedded digits"}[config.dataset]
    kept = [s for s, each in found.items() if last <= STEPS and path_of(each.config).exists()]
    sources = {
        "the committed curves in `measurements/sparsity`": kept,
        "measured just now": [seed for seed in found if seed not in kept],
    }
    parts = [
        f"seed{'s' if len(seeds) > 1 else ''} {listed(seeds)}: {source}"
        for source, seeds in sources.items()
        if seeds
    ]
    return f"The first {last:,} training steps on {name}, {'; '.join(parts)}."


def frame(found: Mapping[int, Curve]) -> DataFrame:
    """All points of some curves: seed, step, layer and shares in percent."""
    import pandas

    return pandas.concat(each.frame().assign(seed=seed) for seed, each in found.items())


def later() -> DataFrame | None:
    """Densities of the paper's baseline in every epoch, from the records that are there.

    `step` is the last of the epoch; None if no run is done.
    """
    epochs = gather("paper", ["table2-baseline"]).histories()
    if epochs.empty:
        return None
    per_epoch = DATASETS["mnist"].train // paper()["training"]["batch_size"]
    columns = [f"{layer}_before" for layer in LAYERS]
    long = epochs.melt(["seed", "epoch"], columns, "layer", "before")
    long["layer"] = long["layer"].str.removesuffix("_before")
    return long.assign(before=100 * long["before"], step=per_epoch * long["epoch"])


def later_in_words(table: DataFrame | None) -> str:
    """How it goes on over the epochs of the paper's baseline, or what is missing for that."""
    results = gather("paper", ["table2-baseline"])
    if table is None:
        return f"How it goes on over whole runs on MNIST: {results.coverage()}"
    last = table[table["epoch"] == table["epoch"].max()].groupby("layer")["before"].mean()
    seeds = table["seed"].nunique()
    many = f"mean of {seeds} seeds" if seeds > 1 else "one seed"
    shares = ", ".join(f"{last[layer]:.1f}% at {layer}" for layer in LAYERS)
    epochs = results.histories()
    top = 100 * epochs.loc[epochs["epoch"] == epochs["epoch"].max(), "fc2_before"].mean()
    return (
        f"Over whole runs: in epoch {table['epoch'].max()} of the paper's "
        f"baseline on MNIST ({many}), {shares} are not zero. By then most zeros come from above: "
        f"at fc2, right below the loss, {top:.1f}% are left. The others belong to images that the "
        "network is so sure of that softmax minus label is zero in float32."
    )


def mean(found: Mapping[int, Curve], layer: str, place: int, name: str = "before") -> float:
    """Over the seeds, of a share in percent at one of the points."""
    return fmean(each.points[place]["layers"][layer][name] for each in found.values())
