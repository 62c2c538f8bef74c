"""The paper's figures, drawn from what the module computes, and pictures of gradients."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle
from torch import Tensor

from meprop import Linear, TopK, select
from meprop.study.style import PALETTE, Figure, subplots

if TYPE_CHECKING:
    from pandas import DataFrame

KEPT: Any = PALETTE[0]
LOST, GREY = "0.78", "0.35"
SCOPES: dict[str, Any] = dict(
    zip(("map", "sample", "layer", "mixed"), (PALETTE[i] for i in (0, 1, 2, 4)), strict=True)
)
_BY = " \N{MULTIPLICATION SIGN} "


def _frame(axis: Axes, x: tuple[float, float], y: tuple[float, float]) -> None:
    """A drawing's extent, without axes."""
    axis.set(xlim=x, ylim=y, aspect="equal")
    axis.set_axis_off()


def _picture(axis: Axes, values: Tensor, extent: Any, colour: Any, z: float) -> None:
    """Values as an image in a box: left, right, bottom, top."""
    left, right, bottom, top = extent
    cmap = "gray_r" if colour is None else "magma_r"
    axis.imshow(values.numpy(), cmap=cmap, extent=extent, zorder=z, aspect="auto")
    size = (right - left, top - bottom)
    axis.add_patch(Rectangle((left, bottom), *size, fill=False, edgecolor=colour or GREY, zorder=z))


# Figure 1


def idea(vector: Sequence[float], k: int) -> Figure:
    """A linear layer, forward and backward: all of dL/dy, and its top k.

    Drawn from two backward passes of `meprop.Linear`: an edge is there if its weight got a
    gradient.
    """
    gradient = torch.tensor([list(map(float, vector))])
    torch.manual_seed(0)
    x = torch.rand(1, 5) + 0.2
    figure, axes = subplots(1, 3, figsize=(9.6, 3.2))
    layer = Linear(x.shape[1], gradient.shape[1], bias=False)
    _units(axes[0], torch.ones_like(layer.weight), None, GREY)
    for axis, rule in ((axes[1], None), (axes[2], TopK(k / gradient.shape[1]))):
        layer.set_rule(rule)
        layer.zero_grad()
        layer(x).backward(gradient)
        assert layer.weight.grad is not None
        passed = gradient if rule is None else gradient * select(gradient, rule)[0]
        _units(axis, layer.weight.grad, (gradient[0], passed[0]), KEPT)
    titles = ("forward: as usual", "backward: all of $\\partial L/\\partial y$")
    for axis, title in zip(axes, (*titles, f"meProp: only the top {k}"), strict=True):
        axis.set_title(title, fontsize=12)
    return figure


def _units(axis: Axes, edges: Tensor, gradient: tuple[Tensor, Tensor] | None, colour: Any) -> None:
    """Inputs on the left, outputs on the right, and the weights between them that are not zero."""
    outputs, inputs = edges.shape
    left = [(0.0, y) for y in np.linspace(1, 0, inputs)]
    right = [(1.0, y) for y in np.linspace(0.92, 0.08, outputs)]
    strength = edges.abs() / edges.abs().max()
    for o, i in np.ndindex(outputs, inputs):
        if weight := float(strength[o, i]):
            arrow = FancyArrowPatch(
                left[i], right[o], arrowstyle="->" if gradient is None else "<-",
                mutation_scale=8, color=colour, linewidth=0.6 + 2 * weight if gradient else 0.9,
                alpha=0.9 if gradient else 0.6, shrinkA=9, shrinkB=13, zorder=1,
            )  # fmt: skip
            axis.add_patch(arrow)
        else:
            axis.plot(*zip(left[i], right[o], strict=True), color="0.88", linewidth=0.7, zorder=0)
    for point in left:
        axis.add_patch(Circle(point, 0.045, facecolor="white", edgecolor=GREY, zorder=3))
    for o, point in enumerate(right):
        passed = gradient is None or bool(gradient[1][o])
        face = "white" if gradient is None else colour if passed else "0.93"
        edge = GREY if passed else "0.7"
        axis.add_patch(Circle(point, 0.075, facecolor=face, edgecolor=edge, zorder=3))
        if gradient is not None:
            text = f"{gradient[0][o]:g}".replace("-", "\N{MINUS SIGN}")
            ink = "white" if passed else "0.4"
            axis.text(*point, text, color=ink, ha="center", va="center", fontsize=11, zorder=4)
            if not passed:
                axis.text(1.13, point[1], f"{_BY.strip()} 0", color="0.4", fontsize=10, va="center")
    axis.text(0, -0.15, "$x$", ha="center", fontsize=12)
    name = "$y$" if gradient is None else "$\\partial L/\\partial y$"
    axis.text(1, -0.15, name, ha="center", fontsize=12)
    _frame(axis, (-0.12, 1.32), (-0.2, 1.1))


# Figure 3


def network(image: Tensor, outputs: Mapping[str, Tensor], selecting: Collection[str]) -> Figure:
    """What each layer makes of one image, the shapes, and where top-k is applied.

    image: 1 x h x w. outputs: by layer, maps x h x w or units; the last one's are probabilities.
    """
    figure, axis = subplots(figsize=(9.6, 3.0))
    _picture(axis, image[0], (0, 28, -14, 14), None, 3)
    axis.text(14, -24, f"image\n{_shape(image.shape)}", ha="center", va="top", fontsize=9.5)
    end = 28.0
    for name, values in outputs.items():
        x = end + 19
        axis.annotate("", (x - 3, 0), (end + 3, 0), arrowprops={"arrowstyle": "->", "color": "0.5"})
        selects = name in selecting
        draw = _stack if values.dim() == 3 else _column
        end = draw(axis, values, x, KEPT if selects else GREY)
        middle, text = (x + end) / 2, f"{name}\n{_shape(values.shape)}"
        weight = "bold" if selects else "normal"
        axis.text(middle, -24, text, ha="center", va="top", fontsize=9.5, fontweight=weight)
        if selects:
            arrow, text = {"arrowstyle": "->", "color": KEPT}, "top-k on the\nway back"
            place = {"xy": (middle, 22), "xytext": (middle, 35), "ha": "center"}
            axis.annotate(text, **place, fontsize=9, color=KEPT, arrowprops=arrow)
    _frame(axis, (-4, end + 12), (-36, 46))
    return figure


def _stack(axis: Axes, maps: Tensor, x: float, colour: Any, shown: int = 6) -> float:
    """Some feature maps behind each other, the strongest ones; returns the right edge."""
    size, offset = maps.shape[-1], 3.2
    order = maps.flatten(1).norm(dim=1).argsort(descending=True)[:shown].flip(0)
    for place, index in enumerate(order):
        back = offset * (shown - 1 - place)
        left, bottom = x + back, -size / 2 + back - offset * (shown - 1) / 2
        extent = (left, left + size, bottom, bottom + size)
        _picture(axis, maps[index], extent, colour, 3 + place)
    return x + size + offset * (shown - 1)


def _column(axis: Axes, values: Tensor, x: float, colour: Any) -> float:
    """Units as a column: many as a strip of 16 a row, ten by name; returns the right edge."""
    digits = len(values) == 10
    rows = values.reshape(-1, 1 if digits else 16)
    height, width = (40.0, 5.0) if digits else (46.0, 11.5)
    _picture(axis, rows, (x, x + width, -height / 2, height / 2), colour, 3)
    for digit in range(10 if digits else 0):
        own = (x + width + 1.5, height / 2 - height * (digit + 0.5) / 10)
        ink, weight = ("black", "bold") if digit == int(values.argmax()) else ("0.45", "normal")
        axis.text(*own, str(digit), fontsize=8, va="center", color=ink, fontweight=weight)
    return x + width


def _shape(sizes: Sequence[int]) -> str:
    """Height, width, maps: as the paper writes it."""
    return _BY.join(str(size) for size in [*sizes[1:], sizes[0]])


# Figure 4


def groups(shape: Sequence[int], chosen: str) -> Figure:
    """A convolution's output, and which of its entries compete with each other under each scope."""
    m, c, h, w = shape
    parts = {
        "map": (c, "m·h·w", m * h * w),
        "sample": (m * c, "h·w", h * w),
        "layer": (1, "m·h·w·c", m * h * w * c),
        "mixed": (m, "h·w·c", h * w * c),
    }
    figure, axes = subplots(
        1, 5, figsize=(9.6, 2.7), gridspec_kw={"width_ratios": [1.15, 1, 1, 1, 1]}
    )
    _block(axes[0], shape)
    for axis, (scope, (number, product, size)) in zip(axes[1:], parts.items(), strict=True):
        for image, column in np.ndindex(4, 6):
            first = (image == 0 or scope in ("map", "layer")) and (
                column == 0 or scope in ("layer", "mixed")
            )
            # Neighbours of different groups have different greys.
            shade = {"map": column, "sample": image + column, "layer": 0, "mixed": image}[scope]
            face = SCOPES[scope] if first else ("0.9", "0.8")[shade % 2]
            axis.add_patch(Rectangle((column, -image), 0.86, 0.86, facecolor=face))
        weight = "bold" if scope == chosen else "normal"
        axis.text(2.93, 2.3, scope, ha="center", fontsize=12, fontweight=weight)
        many = "s" if number > 1 else ""
        text = f"{number:,} group{many}\nof {product}\n= {size:,}"
        axis.text(2.93, -3.5, text, ha="center", va="top", fontsize=9.5)
        axis.text(2.93, 1.1, "feature maps", ha="center", va="bottom", fontsize=8, color="0.4")
        upright = {"rotation": 90, "ha": "right", "va": "center"}
        axis.text(-0.2, -1.07, "images", fontsize=8, color="0.4", **upright)
        _frame(axis, (-1, 6.1), (-6.4, 3.2))
    return figure


def _block(axis: Axes, shape: Sequence[int]) -> None:
    """m images, each a stack of c feature maps of h by w."""
    m, c, h, w = shape
    sheets, shift, apart = 5, 0.34, 4.1
    for image in range(2):
        for sheet in range(sheets):
            left = shift * (sheets - 1 - sheet)
            face = SCOPES["map"] if sheet == sheets - 1 else ("0.9", "0.8")[sheet % 2]
            corner = (left, left - apart * image)
            axis.add_patch(Rectangle(corner, 2.2, 2.2, facecolor=face, edgecolor="white"))
    axis.text(1.1, 1.1, "a map", color="white", ha="center", va="center", fontsize=9)
    axis.text(-0.2, 1.1, f"h = {h}", rotation=90, ha="right", va="center", fontsize=9)
    axis.text(1.1, -0.15, f"w = {w}", ha="center", va="top", fontsize=9)
    axis.text(0.25, 3.35, f"c = {c}", rotation=45, ha="center", va="center", fontsize=9)
    axis.annotate("", (4.2, -apart), (4.2, 3.6), arrowprops={"arrowstyle": "<->", "color": "0.4"})
    axis.text(4.4, -0.2, f"m = {m}", rotation=90, ha="left", va="center", fontsize=9)
    _frame(axis, (-1, 5.2), (-4.4, 4.4))


# Gradients


def maps(
    images: Tensor, grad: Tensor, mask: Tensor, columns: Mapping[int, str], kept: str
) -> Figure:
    """Feature maps of a gradient, all of it and what the mask leaves (`kept`); an image a row.

    `columns` are the maps to draw, with what to call them.
    """
    rows = len(grad)
    figure, axes = subplots(
        rows, 1 + 2 * len(columns), figsize=(9.6, 1.18 * rows + 0.4),
        gridspec_kw={"wspace": 0.02, "hspace": 0.02}, squeeze=False,
    )  # fmt: skip
    # A power brings out the small ones; the same scale for all, so that one can compare.
    scaled = grad.sign() * grad.abs().pow(0.4)
    limit = float(scaled[:, list(columns)].abs().max()) or 1.0
    options = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit, "interpolation": "none"}
    grey = ListedColormap(["none", LOST])
    for row, image in enumerate(images):
        axes[row, 0].imshow(image[0].numpy(), cmap="gray_r")
        for place, column in enumerate(columns):
            before, after = axes[row, 1 + 2 * place], axes[row, 2 + 2 * place]
            own, chosen = scaled[row, column], mask[row, column]
            before.imshow(_without_zeros(own), **options)
            lost = (own != 0) & ~chosen
            after.imshow(lost.numpy(), cmap=grey, vmin=0, vmax=1, interpolation="none")
            after.imshow(_without_zeros(own * chosen), **options)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
        axis.grid(False)
        for spine in axis.spines.values():
            spine.set_edgecolor("0.6")
    axes[0, 0].set_title("image", fontsize=10)
    for place, name in enumerate(columns.values()):
        axes[0, 1 + 2 * place].set_title(f"{name}\nall", fontsize=10)
        axes[0, 2 + 2 * place].set_title(f"\n{kept}", fontsize=10, color=KEPT)
    return figure


def _without_zeros(values: Tensor) -> np.ndarray:
    """Zeros as holes: white, not the middle of the colours."""
    return np.ma.masked_equal(values.numpy(), 0)


_CROSS: dict[str, Any] = {
    "color": PALETTE[3], "marker": "x", "markersize": 7, "markeredgewidth": 2, "linestyle": "none",
}  # fmt: skip


def run_grad(trace: DataFrame) -> Figure:
    """Some entries over the steps: the gradient, run_grad, and when they were selected.

    trace: a row a step and entry, with the columns step, entry, magnitude, run_grad, selected.
    """
    entries = trace.groupby("entry", sort=False)
    figure, axes = subplots(
        len(entries), 1, figsize=(8.6, 1.35 * len(entries) + 0.6), sharex=True, squeeze=False
    )
    for number, (axis, (_, own)) in enumerate(zip(axes.flat, entries, strict=True), 1):
        colours = [KEPT if chosen else LOST for chosen in own["selected"]]
        axis.bar(own["step"], own["magnitude"], color=colours, width=0.8)
        axis.step(own["step"], own["run_grad"], where="mid", color=PALETTE[3], linewidth=1.6)
        empty = own[own["selected"] & (own["magnitude"] == 0)]
        if len(empty):  # a line without points has no extent, and spoils the layout
            axis.plot(empty["step"], empty["magnitude"], clip_on=False, zorder=5, **_CROSS)
        axis.set(yticks=[], ylabel=f"entry {number}", ylim=(0, None))
        axis.grid(False)
        axis.spines[["top", "left", "right"]].set_visible(False)
    steps = trace["step"]
    axis.set(xlabel="training step", xlim=(steps.min() - 0.6, steps.max() + 0.6))
    legend = {
        "$|\\partial L/\\partial y|$, passed back": Rectangle((0, 0), 1, 1, color=KEPT),
        "not passed back": Rectangle((0, 0), 1, 1, color=LOST),
        "run_grad": Line2D([], [], color=PALETTE[3]),
        "selected while zero": Line2D([], [], **_CROSS),
    }
    figure.legend(
        legend.values(), legend.keys(), loc="outside upper center", ncols=4, fontsize=10,
        frameon=False, columnspacing=1.4,
    )  # fmt: skip
    return figure
