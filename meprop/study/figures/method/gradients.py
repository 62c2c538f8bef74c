"""What a selection does to gradients: maps, norms, run_grad and the weights'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import seaborn
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullLocator, PercentFormatter, StrMethodFormatter
from torch import Tensor

from meprop import TopK, select
from meprop.study.figures.method.palette import DIVERGING, GREY, KEPT, LOST, SCOPE_COLOURS
from meprop.study.report.method import Trace
from meprop.study.style import COLOURS, PALETTE, Figure, subplots


def maps(images: Tensor, grad: Tensor, rule: TopK, columns: Mapping[int, str]) -> Figure:
    """Feature maps of a gradient, all of it and what a rule leaves; an image a row.

    `columns` are the maps to draw, with what to call them.
    """
    mask, _ = select(grad, rule)
    rows = len(grad)
    figure, axes = subplots(
        rows, 1 + 2 * len(columns), figsize=(9.6, 1.18 * rows + 0.4),
        gridspec_kw={"wspace": 0.02, "hspace": 0.02},
    )  # fmt: skip
    # A power brings out the small ones; the same scale for all, so that one can compare.
    scaled = grad.sign() * grad.abs().pow(0.4)
    limit = float(scaled[:, list(columns)].abs().max()) or 1.0
    lost = ListedColormap(["none", LOST])
    for row, image in enumerate(images):
        axes[row, 0].imshow(image[0].numpy(), cmap="gray_r")
        for place, column in enumerate(columns):
            before, after = axes[row, 1 + 2 * place], axes[row, 2 + 2 * place]
            options = {"cmap": DIVERGING, "vmin": -limit, "vmax": limit, "interpolation": "none"}
            before.imshow(_clear(scaled[row, column]), **options)
            removed = (grad[row, column] != 0) & ~mask[row, column]
            after.imshow(removed.numpy(), cmap=lost, vmin=0, vmax=1, interpolation="none")
            after.imshow(_clear(scaled[row, column] * mask[row, column]), **options)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
        axis.grid(False)
        for spine in axis.spines.values():
            spine.set_edgecolor("0.6")
    axes[0, 0].set_title("image", fontsize=10)
    for place, name in enumerate(columns.values()):
        axes[0, 1 + 2 * place].set_title(f"{name}\nall", fontsize=10)
        axes[0, 2 + 2 * place].set_title(f"\ntop {100 * rule.ratio:g}%", fontsize=10, color=KEPT)
    return figure


def _clear(values: Tensor) -> np.ndarray:
    """Zeros as holes: white, not the middle of the colours."""
    return np.ma.masked_equal(values.numpy(), 0)


def norms(curves: Any, ratio: float) -> Figure:
    """Share of the gradient's norm that is kept, against ratio, for each layer and scope."""
    layers = list(dict.fromkeys(curves["layer"]))
    figure, axes = subplots(1, len(layers), figsize=(9, 3.4), sharey=True)
    for axis, layer in zip(axes, layers, strict=True):
        part = curves[curves["layer"] == layer]
        seaborn.lineplot(
            part, x="ratio", y="norm", hue="scope", style="scope", palette=SCOPE_COLOURS,
            estimator=None, legend=axis is axes[-1], ax=axis,
        )  # fmt: skip
        axis.axvline(100 * ratio, color=GREY, linewidth=1)
        axis.set(xlabel="entries passed back", ylabel="norm of the gradient kept", ylim=(0, 103))
        axis.set_title(layer, fontsize=12, color=COLOURS[layer])
        percent_axis(axis)
        axis.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    axes[-1].legend(title="scope", loc="lower right")
    return figure


def percent_axis(axis: Axes) -> None:
    """A logarithmic x axis of percentages."""
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator())
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}%"))


_CROSS: dict[str, Any] = {
    "color": PALETTE[3], "marker": "x", "markersize": 7, "markeredgewidth": 2, "linestyle": "none",
}  # fmt: skip


def run_grad(found: Trace) -> Figure:
    """Three entries over the steps: the gradient, run_grad, and when they were selected."""
    entries = found.magnitudes.shape[1]
    figure, axes = subplots(entries, 1, figsize=(8.6, 1.35 * entries + 0.6), sharex=True)
    steps = found.first + np.arange(len(found.magnitudes))
    for number, axis in enumerate(np.atleast_1d(axes)):
        magnitude, history, selected = (
            each[:, number].numpy() for each in (found.magnitudes, found.run_grads, found.selected)
        )
        colours = [KEPT if chosen else LOST for chosen in selected]
        axis.bar(steps, magnitude, color=colours, width=0.8)
        axis.step(steps, history, where="mid", color=PALETTE[3], linewidth=1.6)
        empty = selected & (magnitude == 0)
        if empty.any():
            axis.plot(steps[empty], np.zeros(empty.sum()), clip_on=False, zorder=5, **_CROSS)
        axis.set(yticks=[], ylabel=f"entry {number + 1}", ylim=(0, None))
        axis.grid(False)
        seaborn.despine(ax=axis, left=True)
    axes[-1].set(xlabel="training step", xlim=(steps[0] - 0.6, steps[-1] + 0.6))
    names = (
        "$|\\partial L/\\partial y|$, passed back",
        "not passed back",
        "run_grad",
        "selected while zero",
    )
    handles = [
        *(Rectangle((0, 0), 1, 1, color=colour) for colour in (KEPT, LOST)),
        Line2D([], [], color=PALETTE[3]),
        Line2D([], [], **_CROSS),
    ]
    figure.legend(
        handles, names, loc="outside upper center", ncols=4, fontsize=10, frameon=False,
        columnspacing=1.4,
    )  # fmt: skip
    return figure


def weights(measured: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Where dL/dW is not zero: a row a filter or unit."""
    figure, axes = subplots(
        1, len(measured), figsize=(9.4, 3.3), gridspec_kw={"width_ratios": [1, 2.4, 2.4]}
    )
    for axis, (layer, values) in zip(axes, measured.items(), strict=True):
        grad = values["grad"][:64]
        cells = ListedColormap(["0.9", KEPT])
        axis.imshow(
            (grad != 0).numpy(), cmap=cells, vmin=0, vmax=1, aspect="auto", interpolation="none"
        )
        axis.grid(False)
        axis.set(xticks=[], yticks=[])
        unit = "unit" if layer == "MLP" else "filter"
        axis.set_xlabel("inputs" if layer == "MLP" else "weights of a filter", fontsize=10)
        axis.set_ylabel(f"one row a {unit}", fontsize=10)
        of = f" (first {len(grad)} of {len(values['grad'])} rows)" if layer == "MLP" else ""
        axis.set_title(f"{layer}{of}", fontsize=11)
    return figure


def weight_density(densities: Any, ratio: float) -> Figure:
    """Nonzero share of dL/dW against ratio."""
    figure, axis = subplots(figsize=(6.6, 3.4))
    palette = {layer: COLOURS.get(layer, PALETTE[1]) for layer in densities["layer"].unique()}
    seaborn.lineplot(
        densities, x="ratio", y="weight", hue="layer", style="layer", palette=palette, markers=True,
        dashes=False, estimator=None, ax=axis,
    )  # fmt: skip
    axis.axvline(100 * ratio, color=GREY, linewidth=1)
    axis.set(xlabel="entries of $\\partial L/\\partial y$ passed back", ylim=(0, 104))
    axis.set(ylabel="nonzero entries of $\\partial L/\\partial W$")
    percent_axis(axis)
    axis.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    axis.legend(title=None)
    return figure
