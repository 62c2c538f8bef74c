"""The Sparsity page's pictures: densities against step, below BN, and what top-k removes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import seaborn
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    LogLocator,
    MaxNLocator,
    NullLocator,
    PercentFormatter,
    StrMethodFormatter,
)

from meprop.study.paper import paper
from meprop.study.report.densities import CONVOLUTIONS, Stretch
from meprop.study.report.sparsity import LAYERS
from meprop.study.style import COLOURS, PALETTE, Figure, logarithmic, subplots


def against_step(
    tables: Mapping[str, Any], stretches: Mapping[str, Sequence[Stretch]], later: Any = None
) -> Figure:
    """Densities over the steps, a panel an activation; the paper's figures dashed.

    `stretches` are shaded, `later` (densities of whole epochs) goes on as points.
    """
    figure, axes = subplots(1, len(tables), figsize=(9.6, 3.9), sharey=True)
    for axis, (activation, table) in zip(axes, tables.items(), strict=True):
        for stretch in stretches.get(activation, ()):
            axis.axvspan(stretch.first * 0.97, stretch.last * 1.03, color="0.9", zorder=0)
        _lines(axis, table, "before")
        if activation == "sigmoid":  # conv2 lies on top of conv1
            axis.lines[0].set_linewidth(5)
        if activation == "relu" and later is not None:
            means = later.groupby(["layer", "step"], as_index=False)["before"].mean()
            for layer, part in means.groupby("layer"):
                axis.plot(part["step"], part["before"], ".", color=COLOURS[layer], markersize=5)
        figures = paper()["densities"][activation]
        for layer in LAYERS:
            axis.axhline(figures[layer], color=COLOURS[layer], linestyle="--", linewidth=1.2)
        axis.set_title({"relu": "ReLU"}.get(activation, activation), fontsize=12)
        _steps(axis)
        lowest = 0.8 if later is None else min(0.8, 0.8 * later["before"].min())
        axis.set(ylabel="nonzero entries of $\\partial L/\\partial y$", ylim=(lowest, 130))
        logarithmic(axis, "{x:g}%")
    handles = [Line2D([], [], color=COLOURS[layer], linewidth=2) for layer in LAYERS]
    handles.append(Line2D([], [], color="0.3", linestyle="--"))
    figure.legend(
        handles, [*LAYERS, "the paper"], loc="outside upper center", ncols=4, frameon=False
    )
    return figure


def _lines(axis: Axes, table: Any, name: str, layers: Sequence[str] = tuple(LAYERS)) -> None:
    """The mean over seeds, and the range as a band."""
    for layer in layers:
        steps = table[table["layer"] == layer].groupby("step")[name]
        mean, low, high = steps.mean(), steps.min(), steps.max()
        axis.fill_between(mean.index, low, high, color=COLOURS[layer], alpha=0.25, linewidth=0)
        axis.plot(mean.index, mean, color=COLOURS[layer], linewidth=2)


def _steps(axis: Axes) -> None:
    axis.set_xscale("log")
    axis.set(xlabel="training step")
    axis.xaxis.set_major_locator(LogLocator())
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def normalised(table: Any) -> Figure:
    """Densities with and without batch normalisation, at three places."""
    figure, axis = subplots(figsize=(7.6, 3.4))
    seaborn.barplot(
        table, x="layer", y="share", hue="where", palette=["0.75", PALETTE[9], PALETTE[0]],
        errorbar=("pi", 100), capsize=0.2, err_kws={"linewidth": 1.2}, ax=axis,
    )  # fmt: skip
    cap = paper()["pooling"]["cap"]
    axis.plot([-0.45, 1.45], [cap, cap], color="0.3", linestyle="--", linewidth=1.2)
    axis.text(-0.46, cap + 1.5, "cap of 2x2 pooling", fontsize=9, color="0.3")
    axis.set(xlabel="", ylabel="nonzero entries of $\\partial L/\\partial y$", ylim=(0, 108))
    axis.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    seaborn.move_legend(
        axis, "lower center", bbox_to_anchor=(0.5, 1), ncols=3, title=None, frameon=False
    )
    return figure


def top_k(table: Any) -> Figure:
    """What 5% would do at the convolutions: densities before and after, and the norm kept."""
    figure, axes = subplots(1, 2, figsize=(9.6, 3.6))
    percent = paper()["ratio"]["percent"]
    _lines(axes[0], table, "before", CONVOLUTIONS)
    for layer in CONVOLUTIONS:
        after = table[table["layer"] == layer].groupby("step")["after"].mean()
        axes[0].plot(after.index, after, color=COLOURS[layer], linewidth=1.6, linestyle=":")
    axes[0].axhline(percent, color="0.3", linewidth=1)
    axes[0].set(ylabel="nonzero entries of $\\partial L/\\partial y$")
    logarithmic(axes[0], "{x:g}%")
    _lines(axes[1], table, "norm_kept", CONVOLUTIONS)
    axes[1].set(ylabel="norm of the gradient kept", ylim=(None, 100.8))
    axes[1].yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))
    axes[1].yaxis.set_major_formatter(PercentFormatter(decimals=0))
    for axis in axes:
        _steps(axis)
    handles = [Line2D([], [], color=COLOURS[layer], linewidth=2) for layer in CONVOLUTIONS]
    handles += [Line2D([], [], color="0.3", linestyle=style) for style in ("-", ":")]
    names = (*CONVOLUTIONS, "by itself", f"after top-{percent}%")
    figure.legend(handles, names, loc="outside upper center", ncols=4, frameon=False)
    return figure
