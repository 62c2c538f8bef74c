"""What the Sparsity page says: density curves beside the paper's figures, pooling, selection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from meprop import watch
from meprop.study.config import Config
from meprop.study.data import DATASETS
from meprop.study.network import ACTIVATIONS
from meprop.study.report.paper import paper
from meprop.study.report.results import gather
from meprop.study.report.sparsity import (
    LAYERS,
    POINTS,
    SEEDS,
    SHARE,
    STEPS,
    Curve,
    configuration,
    curve,
    path_of,
)
from meprop.study.seeding import build

if TYPE_CHECKING:
    from pandas import DataFrame

TIMES = "\N{MULTIPLICATION SIGN}"
CONVOLUTIONS = ("conv1", "conv2")


# The curves


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
        f"seed{'s' if len(seeds) > 1 else ''} {_listed(seeds)}: {source}"
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


# Beside the paper


def tolerance(figure: float) -> float:
    """How far from a figure of the paper counts as met, in points; fixed beforehand.

    >>> [round(tolerance(figure), 1) for figure in (3, 50)]
    [1.0, 2.0]
    """
    return min(POINTS, SHARE * figure)


@dataclass(frozen=True)
class Stretch:
    """Consecutive points of a curve at which all three figures are met."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first:,}" if self.first == self.last else f"{self.first:,}-{self.last:,}"


def agreement(found: Curve) -> list[Stretch]:
    """Where all three densities meet the paper's figures for the curve's activation."""
    figures = paper()["densities"][found.config.activation]
    stretches: list[Stretch] = []
    open_ = False
    for point in found.points:
        met = all(
            abs(point["layers"][layer]["before"] - figures[layer]) <= tolerance(figures[layer])
            for layer in LAYERS
        )
        if met and open_:
            stretches[-1] = Stretch(stretches[-1].first, point["step"])
        elif met:
            stretches.append(Stretch(point["step"], point["step"]))
        open_ = met
    return stretches


def mean_curve(found: Mapping[int, Curve]) -> Curve:
    """The mean of some curves with the same points, as a curve."""
    some = next(iter(found.values()))
    points = [
        {
            "step": point["step"],
            "layers": {
                layer: {name: _mean(found, layer, place, name) for name in shares}
                for layer, shares in point["layers"].items()
            },
        }
        for place, point in enumerate(some.points)
    ]
    return Curve(some.config, points, some.provenance)


def agreement_in_words(found: Mapping[int, Curve]) -> str:
    """What "1 iteration" can mean, over the seeds there are."""
    config = next(iter(found.values())).config
    figures = paper()["densities"][config.activation]
    stated = ", ".join(f"{figures[layer]} ± {tolerance(figures[layer]):g}%" for layer in LAYERS)
    where = {f"seed {seed}": agreement(each) for seed, each in found.items()}
    if len(found) > 1:
        where["mean of the seeds"] = agreement(mean_curve(found))
    lines = [
        f"- {name}: " + (f"steps {', '.join(map(str, each))}" if each else "nowhere")
        for name, each in where.items()
    ]
    met = [each for each in where.values() if each]
    epoch = DATASETS[config.dataset].train // config.batch_size
    if not met:
        verdict = "No step in this range shows all three figures at once."
    elif all(each and each[0].first == 1 for each in where.values()):
        verdict = (
            "The very first step shows all three figures: here one iteration can be one mini-batch."
        )
    else:
        early, late = min(each[0].first for each in met), max(each[-1].last for each in met)
        verdict = (
            'So with this initialisation "1 iteration" cannot be one mini-batch: the first step '
            f"has {_at(found, 0)}. The figures fit a network that has learned from {early:,} to "
            f"{late:,} mini-batches; an epoch has {epoch:,}."
        )
        last = found[next(iter(found))].points[-1]["step"]
        if late < last:
            verdict += f" Nor can it be much later: step {last:,} has {_at(found, -1)}."
    name = "ReLU" if config.activation == "relu" else config.activation
    return (
        f"With {name}, all three densities (conv1, conv2 and fc1: {stated}) are met at\n\n"
        + "\n".join(lines)
        + f"\n\n{verdict}"
    )


def _at(found: Mapping[int, Curve], place: int) -> str:
    return _listed(f"{_mean(found, layer, place):.0f}%" for layer in LAYERS)


def table_of_steps(found: Mapping[int, Curve], steps: Sequence[int]) -> str:
    """Densities at some steps: mean over seeds, and the range; the paper's in the last row."""
    config = next(iter(found.values())).config
    lines = [f"| step | {' | '.join(LAYERS)} |", "|---:|---:|---:|---:|"]
    places = [point["step"] for point in next(iter(found.values())).points]
    for step in [each for each in steps if each in places]:
        place = places.index(step)
        cells = []
        for layer in LAYERS:
            values = [each.points[place]["layers"][layer]["before"] for each in found.values()]
            cells.append(_mean_and_range(values))
        lines.append(f"| {step:,} | {' | '.join(cells)} |")
    figures = paper()["densities"][config.activation]
    cells = [f"**{figures[layer]}%**" for layer in LAYERS]
    return "\n".join([*lines, f"| the paper | {' | '.join(cells)} |"])


def _mean_and_range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    spread = f" ({low}-{high})" if low != high else ""
    return f"{fmean(values):.1f}%{spread}"


def _mean(found: Mapping[int, Curve], layer: str, place: int, name: str = "before") -> float:
    return fmean(each.points[place]["layers"][layer][name] for each in found.values())


def _listed(values: Any) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} and {last}" if most else last


# Pooling


@dataclass(frozen=True)
class Pool:
    """A max-pooling, and the densities below it in percent."""

    kernel: int
    stride: int
    cap: float  # if every window has one winner of its own, which gets a gradient
    measured: dict[str, float]  # by activation

    @property
    def name(self) -> str:
        overlap = f", stride {self.stride}" if self.stride != self.kernel else ""
        return f"{self.kernel} {TIMES} {self.kernel}{overlap}"


def pooling(
    images: Tensor, sizes: Sequence[tuple[int, int]] = ((1, 1), (2, 2), (3, 2), (3, 3), (4, 4))
) -> list[Pool]:
    """Density at the output of conv1 below max-poolings of some kernels and strides."""
    return [_pool(images, kernel, stride) for kernel, stride in sizes]


def _pool(images: Tensor, kernel: int, stride: int) -> Pool:
    side = images.shape[-1]
    windows = ((side - kernel) // stride + 1) ** 2
    conv = build(Config(dataset="digits")).conv1
    measured = {}
    for name in ("relu", "sigmoid"):
        with watch(conv) as seen:
            pooled = F.max_pool2d(ACTIVATIONS[name](conv(images)), kernel, stride)
            pooled.backward(torch.randn(pooled.shape, generator=Generator().manual_seed(0)))
        measured[name] = 100 * (seen[""].before or 0.0)
    return Pool(kernel, stride, 100 * windows / side**2, measured)


def table_of_pools(pools: Sequence[Pool]) -> str:
    """Caps and measured densities."""
    lines = ["| max-pooling | at most | sigmoid | ReLU |", "|---|---:|---:|---:|"]
    for pool in pools:
        name = "none" if pool.kernel == 1 else pool.name
        shares = (pool.cap, pool.measured["sigmoid"], pool.measured["relu"])
        lines.append(f"| {name} | {' | '.join(f'{share:.0f}%' for share in shares)} |")
    return "\n".join(lines)


# Batch normalisation


def bars(with_it: Mapping[int, Curve], without: Mapping[int, Curve]) -> DataFrame:
    """Density at the last step: without batch normalisation, and with it, above and below."""
    import pandas

    rows = []
    for found, name, where in (
        (without, "before", "no BN"),
        (with_it, "above", "BN, above it"),
        (with_it, "before", "BN, at the layer's output"),
    ):
        for seed, each in found.items():
            for layer, shares in each.points[-1]["layers"].items():
                rows.append({"seed": seed, "layer": layer, "where": where, "share": shares[name]})
    return pandas.DataFrame(rows)


def bars_in_words(table: DataFrame) -> str:
    """The same in a sentence."""
    means = table.groupby(["where", "layer"])["share"].mean()
    above = [means["BN, above it", layer] for layer in CONVOLUTIONS]
    below = [means["BN, at the layer's output", layer] for layer in CONVOLUTIONS]
    return (
        f"Above batch normalisation, {above[0]:.0f}% (conv1) and {above[1]:.0f}% (conv2) of the "
        f"gradient are not zero; below it, at the output of the convolution, **{below[0]:.0f}% and "
        f"{below[1]:.0f}%**. There pooling and activation leave top-k nothing for free, and "
        f"{paper()['ratio']['percent']}% of the gradient is {paper()['ratio']['percent']}% of it, "
        f"not {paper()['pooling']['share_of_cap']}% of {paper()['pooling']['cap']}%."
    )


# What top-k removes


def removed(found: Mapping[int, Curve]) -> DataFrame:
    """What 5% would do at the convolutions: as `frame`, with `removed`, in percent of nonzeros."""
    table = frame(found)
    table = table[table["layer"].isin(CONVOLUTIONS)]
    return table.assign(removed=100 * (1 - table["after"] / table["before"]))


def removed_in_words(found: Mapping[int, Curve]) -> str:
    """What is left for 5% to remove at the last step, and since when conv2 has fewer."""
    percent = paper()["ratio"]["percent"]
    table = removed(found)
    last = table[table["step"] == table["step"].max()].groupby("layer").mean(numeric_only=True)
    parts = [
        f"at {layer} it removes {row['removed']:.0f}% of the nonzero entries and leaves "
        f"{_most(row['norm_kept'])} of the norm"
        for layer, row in last.iterrows()
    ]
    conv2 = table[table["layer"] == "conv2"].groupby("step")["before"].mean()
    below = conv2[conv2 < percent]
    text = f"At step {table['step'].max():,}, a selection of {percent}% would do this: "
    text += f"{'; '.join(parts)}. "
    if below.empty:
        return text + f"The density of conv2 stays above {percent}% all the time."
    above = conv2[conv2 >= percent]
    since = below.index[0] if above.empty else below[below.index > above.index[-1]].index.min()
    if since != since:  # the last point is above again
        return text + f"The density of conv2 is below {percent}% for some of the time only."
    row = last.loc["conv2"]
    return text + (
        f"From step {since:,} on, conv2 has fewer than {percent}% nonzero entries by itself "
        f"({row['before']:.1f}% at the end). Top-k still bites there, because the entries "
        f"are not spread evenly over the feature maps: {row['untouched']:.0f}% of the maps have no "
        f"more than k and lose nothing, and the selection thins out the rest."
    )


def _most(share: float) -> str:
    """A share that may be close to all, without saying so if it is not."""
    return "more than 99.9%" if 99.9 < share < 100 else f"{share:.1f}%"


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
