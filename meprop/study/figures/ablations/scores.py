"""Accuracies, differences and gaps: a dot a seed, and the mean with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from meprop.study.figures.ablations.axes import along, scale
from meprop.study.report.ablations import GAPS, Ablation, Row, number
from meprop.study.report.statistics import Interval, interval
from meprop.study.style import PALETTE, Figure, subplots


def scores(ablation: Ablation) -> Figure | None:
    """Test accuracy, and its difference to the reference: along a scale if the study has one."""
    if not ablation.done:
        return None
    return _points(ablation) if ablation.axis is None else _lines(ablation, ablation.axis)


def _points(ablation: Ablation) -> Figure:
    rows = ablation.rows
    figure, axes = subplots(1, 2, figsize=(9, 0.5 * len(rows) + 1.2), sharey=True)
    for place, row in enumerate(rows):
        colour = PALETTE[ablation.groups.index(row.group)]
        test, difference = (interval([]),) * 2 if row.stuck else (row.test, row.difference)
        _spread(axes[0], list(row.accuracy("test").values()), test, place, colour)
        _spread(axes[1], _differences(ablation, row), difference, place, colour)
    axes[1].axvline(0, color="0.4", linewidth=1)
    axes[0].set(xlabel="test accuracy (%)")
    axes[1].set(xlabel="difference to the reference (points)")
    axes[0].set_yticks(range(len(rows)), [row.label for row in rows])
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    for axis in axes:
        axis.grid(visible=False, axis="y")
        axis.xaxis.set_major_locator(MaxNLocator(5))
    return figure


def _spread(
    axis: Axes, values: Sequence[float], found: Interval, place: float, colour: Any
) -> None:
    """A dot a seed, and above them the mean with its interval where there is one."""
    axis.plot(values, [place + 0.1] * len(values), "o", color=colour, alpha=0.5, markersize=6)
    if found.known:
        axis.plot([found.low, found.high], [place - 0.12] * 2, color=colour, linewidth=2)
        axis.plot(found.mean, place - 0.12, "D", color=colour, markersize=6)


def _differences(ablation: Ablation, row: Row) -> list[float]:
    if row.reference is None:
        return []
    ours, theirs = row.accuracy("test"), ablation.row(row.reference).accuracy("test")
    return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]


def _lines(ablation: Ablation, field: str) -> Figure:
    figure, axes = subplots(1, 2, figsize=(9, 3.6))
    lines = {
        name: rows
        for name, rows in along(ablation, field).items()
        if any(row.records for row in rows)
    }
    for place, (name, rows) in enumerate(lines.items()):
        options = {"colour": PALETTE[place], "marker": "osD^v"[place % 5], "label": name}
        tests = {r.name: (r.test, list(r.accuracy("test").values())) for r in rows if r.records}
        differences = {
            r.name: (r.difference, _differences(ablation, r)) for r in rows if r.difference.n
        }
        for axis, values in zip(axes, (tests, differences), strict=True):
            numbers = [number(ablation.row(row).config, field) for row in values]
            # Beside each other, not on top of each other.
            beside = [n * 1.05**place if field == "ratio" else n + place / 100 for n in numbers]
            _line(axis, beside, list(values.values()), **options)
    axes[1].axhline(0, color="0.4", linewidth=1)
    axes[0].set(ylabel="test accuracy (%)")
    axes[1].set(ylabel="difference to the reference (points)")
    for axis in axes:
        scale(axis, ablation, field)
    if len(lines) > 1:
        axes[0].legend(loc="best", fontsize="small")
    return figure


def _line(
    axis: Axes,
    places: Sequence[float],
    values: Sequence[tuple[Interval, list[float]]],
    colour: Any,
    **options: Any,
) -> None:
    """Means along a scale, with intervals and a dash a seed where there is more than one."""
    means = [found.mean for found, _ in values]
    axis.plot(places, means, color=colour, linewidth=1.4, **options)
    for place, (found, seeds) in zip(places, values, strict=True):
        if found.known:
            axis.plot([place] * 2, [found.low, found.high], color=colour, linewidth=2)
            axis.plot([place] * len(seeds), seeds, "_", color=colour, alpha=0.6)


def gaps(ablation: Ablation) -> Figure | None:
    """Distances between training, development and test accuracy; None for other studies."""
    if not ablation.varies("train_size", "dropout") or not ablation.done:
        return None
    rows = ablation.done
    figure, axes = subplots(1, 2, figsize=(9, 0.5 * len(rows) + 1.2), sharey=True)
    for axis, (first, second) in zip(axes, GAPS, strict=True):
        for place, row in enumerate(rows):
            values = list(row.gap(first, second).values())
            colour = PALETTE[ablation.groups.index(row.group)]
            _spread(axis, values, interval(values), place, colour)
        axis.axvline(0, color="0.4", linewidth=1)
        axis.set(xlabel=f"{first} - {second} accuracy (points)")
        axis.grid(visible=False, axis="y")
    axes[0].set_yticks(range(len(rows)), [row.label for row in rows])
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    return figure
