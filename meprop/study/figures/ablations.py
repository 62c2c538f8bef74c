"""The figures of the ablations: scores, learning curves, gradients, gaps, and the chosen sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas
import seaborn
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from meprop.study.figures.style import COLOURS, PALETTE, Figure, logarithmic, subplots
from meprop.study.report.ablations import GAPS, Ablation, Row, number
from meprop.study.report.statistics import Interval, interval

# What the axis of a field says.
_AXES = {"ratio": "share of the gradients passed back (%)", "decay": "decay of run_grad"}


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
        _spread(axes[0], list(row.accuracy("test").values()), row.test, place, colour)
        _spread(axes[1], _differences(ablation, row), row.difference, place, colour)
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
        for name, rows in _along(ablation, field).items()
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
        _scale(axis, ablation, field)
    if len(lines) > 1:
        axes[0].legend(loc="best", fontsize="small")
    return figure


def _along(ablation: Ablation, field: str) -> dict[str, list[Row]]:
    """The rows by what else sets them apart, each list in the order of the field."""
    others = [name for name in ablation.study.varies if name != field]
    within = others == list(ablation.study.within)
    lines: dict[str, list[Row]] = {}
    for row in ablation.rows:
        lines.setdefault(row.group if within else row.treatment, []).append(row)
    return {
        name: sorted(rows, key=lambda row: number(row.config, field))
        for name, rows in lines.items()
    }


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


def _scale(axis: Axes, ablation: Ablation, field: str) -> None:
    """The x axis of a field, with a tick for each of its values."""
    values = sorted({number(row.config, field) for row in ablation.rows})
    if field == "ratio":
        axis.set_xscale("log")
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
        axis.set_xlim(values[0] / 1.3, values[-1] * 1.3)
    else:
        axis.set_xlim(values[0] - 0.05 * values[-1], values[-1] * 1.05)
    axis.xaxis.set_major_locator(FixedLocator(values))
    axis.tick_params(axis="x", labelsize="small")
    axis.set(xlabel=_AXES.get(field, field.replace("_", " ")))


def curves(ablation: Ablation) -> Figure | None:
    """Development error against epoch, a panel a group, a line a treatment."""
    rows = [
        {"epoch": epoch["epoch"], "group": row.group, "treatment": row.treatment, "seed": seed}
        | {"error": 100 - epoch["dev_accuracy"]}
        for row in ablation.done
        for seed, record in row.records.items()
        for epoch in record.history
    ]
    if not rows:
        return None
    table = pandas.DataFrame(rows)
    groups = [group for group in ablation.groups if group in set(table["group"])]
    figure, axes = subplots(1, len(groups), figsize=(9, 3.6), sharey=True, squeeze=False)
    treatments = _treatments(ablation)
    for axis, group in zip(axes[0], groups, strict=True):
        seaborn.lineplot(
            table[table["group"] == group],
            x="epoch",
            y="error",
            hue="treatment",
            hue_order=list(treatments),
            palette=treatments,
            errorbar=("pi", 100) if table["seed"].nunique() > 1 else None,
            linewidth=1.4,
            ax=axis,
        )
        axis.set(title=group, ylabel="development error (%)")
        logarithmic(axis, "{x:g}")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    _one_legend(figure, axes[0])
    return figure


def _treatments(ablation: Ablation) -> dict[str, Any]:
    """A colour for each; those along a scale go from dark to light."""
    names = list(dict.fromkeys(row.treatment for row in ablation.done))
    if len(names) > 4 and ablation.axis is not None:
        return dict(zip(names, seaborn.color_palette("viridis", len(names)), strict=True))
    return dict(zip(names, PALETTE, strict=False))


def gradients(ablation: Ablation) -> Figure | None:
    """Densities before and after selection and norm kept along the ratio; None for other studies.

    A panel a group.
    """
    if ablation.axis != "ratio" or not ablation.done:
        return None
    layers = [layer for layer in ablation.layers if layer in COLOURS]
    lines = _along(ablation, "ratio")
    figure, axes = subplots(1, len(lines), figsize=(9, 3.8), sharey=True, squeeze=False)
    styles: dict[str, Any] = {"before": ":", "after": "-", "norm_kept": "--"}
    for axis, (name, rows) in zip(axes[0], lines.items(), strict=True):
        known = [row for row in rows if row.records]
        places = [number(row.config, "ratio") for row in known]
        for layer in layers:
            for what, style in styles.items():
                values = [row.layer(layer, what) for row in known]
                axis.plot(places, values, style, marker=".", color=COLOURS[layer], linewidth=1.6)
        axis.set(title=name)
        logarithmic(axis, "{x:g}%")
        _scale(axis, ablation, "ratio")
    axes[0][0].set(ylabel="share of the gradient")
    names = ("nonzero before selection", "nonzero after", "norm kept")
    handles = [Line2D([], [], color=COLOURS[layer], label=layer) for layer in layers]
    handles += [
        Line2D([], [], color="0.3", linestyle=style, label=name)
        for style, name in zip(styles.values(), names, strict=True)
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=5, frameon=False)
    return figure


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


def losses(ablation: Ablation) -> Figure | None:
    """Training and development loss against epoch; None for studies not about overfitting."""
    if not ablation.varies("train_size", "dropout") or not ablation.done:
        return None
    rows = [
        {"epoch": epoch["epoch"], "group": row.group, "treatment": row.treatment}
        | {"part": part, "loss": epoch[f"{part}_loss"]}
        for row in ablation.done
        for record in row.records.values()
        for epoch in record.history
        for part in ("train", "dev")
    ]
    table = pandas.DataFrame(rows)
    groups = [group for group in ablation.groups if group in set(table["group"])]
    figure, axes = subplots(1, len(groups), figsize=(9, 3.6), sharey=True, squeeze=False)
    for axis, group in zip(axes[0], groups, strict=True):
        seaborn.lineplot(
            table[table["group"] == group],
            x="epoch",
            y="loss",
            hue="treatment",
            style="part",
            palette=_treatments(ablation),
            dashes={"train": (2, 1.5), "dev": ""},
            errorbar=None,
            linewidth=1.6,
            ax=axis,
        )
        axis.set(title=group, ylabel="mean cross-entropy")
        logarithmic(axis, "{x:g}")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    _one_legend(figure, axes[0])
    return figure


def _one_legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """The legend beside all panels instead of one in each."""
    entries: dict[str, Any] = {}
    for axis in axes:
        handles, names = axis.get_legend_handles_labels()
        entries |= dict(zip(names, handles, strict=True))
        if (legend := axis.get_legend()) is not None:
            legend.remove()
    for title in ("treatment", "part"):
        entries.pop(title, None)
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside right center",
        frameon=False,
        fontsize="small",
    )


def chosen(counts: pandas.DataFrame) -> Figure:
    """Distinct entries chosen so far against step, and what stays of a chosen set against lag."""
    layers = list(dict.fromkeys(counts["layer"]))
    figure, axes = subplots(2, 2, figsize=(9, 6.2), sharey="row", sharex="row")
    decays = sorted(set(counts["decay"]))
    colours = dict(zip(decays, seaborn.color_palette("viridis", len(decays)), strict=True))
    for column, layer in enumerate(layers[:2]):
        for line, (measure, what) in enumerate((("ever", "step"), ("kept", "lag"))):
            axis = axes[line][column]
            rows = counts[(counts["layer"] == layer) & (counts["measure"] == measure)]
            for (decay, norm), part in rows.groupby(["decay", "batch_norm"]):
                axis.plot(
                    part["at"],
                    100 * part["share"],
                    linestyle="--" if norm else "-",
                    marker=".",
                    color=colours[decay],
                )
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set(title=layer if line == 0 else None, ylim=(0, 100))
            axis.set(xlabel="training step" if what == "step" else "steps later")
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}%"))
    axes[0][0].set(ylabel="entries chosen at least once")
    axes[1][0].set(ylabel="of a chosen set, chosen still")
    handles = [Line2D([], [], color=colours[d], label=f"decay {d:g}") for d in decays]
    handles.append(Line2D([], [], color="0.3", linestyle="-", label="no BN"))
    handles.append(Line2D([], [], color="0.3", linestyle="--", label="with BN"))
    figure.legend(handles=handles, loc="outside upper center", ncols=6, frameon=False)
    return figure
