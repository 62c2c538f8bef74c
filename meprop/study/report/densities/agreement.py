"""Where the densities meet the figures of the paper, and what its "1 iteration" can mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from meprop.study.data import DATASETS
from meprop.study.paper import paper
from meprop.study.report.densities.curves import mean
from meprop.study.report.sparsity import LAYERS, POINTS, SHARE, Curve
from meprop.study.words import listed


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
                layer: {name: mean(found, layer, place, name) for name in shares}
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
    return listed(f"{mean(found, layer, place):.0f}%" for layer in LAYERS)


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
