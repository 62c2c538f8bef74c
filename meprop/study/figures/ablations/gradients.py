"""What the selection leaves of the gradients, and which entries it chooses."""

from __future__ import annotations

from typing import Any

import pandas
import seaborn
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from meprop.study.figures.ablations.axes import along, scale
from meprop.study.report.ablations import Ablation, number
from meprop.study.style import COLOURS, Figure, logarithmic, subplots


def gradients(ablation: Ablation) -> Figure | None:
    """Densities before and after selection and norm kept along the ratio; None for other studies.

    A panel a group.
    """
    if ablation.axis != "ratio" or not ablation.done:
        return None
    layers = [layer for layer in ablation.layers if layer in COLOURS]
    lines = along(ablation, "ratio")
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
        scale(axis, ablation, "ratio")
    axes[0][0].set(ylabel="share of the gradient")
    names = ("nonzero before selection", "nonzero after", "norm kept")
    handles = [Line2D([], [], color=COLOURS[layer], label=layer) for layer in layers]
    handles += [
        Line2D([], [], color="0.3", linestyle=style, label=name)
        for style, name in zip(styles.values(), names, strict=True)
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=5, frameon=False)
    return figure


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
