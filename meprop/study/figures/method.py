"""The Method page's pictures: the paper's four figures drawn from the model, and its gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import seaborn
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle
from matplotlib.ticker import LogLocator, NullLocator, PercentFormatter, StrMethodFormatter
from torch import Tensor

from meprop import Linear, TopK, select
from meprop.study.data import Part
from meprop.study.figures.style import COLOURS, PALETTE, Figure, subplots
from meprop.study.network import PaperCNN
from meprop.study.report.method import SCOPES, TIMES, Stage, Trace, groups

KEPT: Any = PALETTE[0]
LOST, GREY = "0.78", "0.35"
DIVERGING = "RdBu_r"
SCOPE_COLOURS = dict(zip(SCOPES, (PALETTE[i] for i in (0, 1, 2, 4)), strict=True))


# The paper's Figure 1


def idea(vector: Sequence[float], k: int) -> Figure:
    """A linear layer, forward and backward: all of dL/dy, and its top k.

    Drawn from two backward passes of `meprop.Linear`: an edge is there if its weight got a
    gradient.
    """
    gradient = torch.tensor([list(map(float, vector))])
    torch.manual_seed(0)
    x = torch.rand(1, 5) + 0.2
    figure, axes = subplots(1, 3, figsize=(9.6, 3.2))
    titles = ("forward: as usual", "backward: all of $\\partial L/\\partial y$")
    layer = Linear(x.shape[1], gradient.shape[1], bias=False)
    _units(axes[0], torch.ones_like(layer.weight), x[0], None, GREY)
    for axis, rule in ((axes[1], None), (axes[2], TopK(k / gradient.shape[1]))):
        layer.set_rule(rule)
        layer.zero_grad()
        layer(x).backward(gradient)
        assert layer.weight.grad is not None
        passed = gradient if rule is None else gradient * select(gradient, rule)[0]
        _units(axis, layer.weight.grad, x[0], (gradient[0], passed[0]), KEPT)
    for axis, title in zip(axes, (*titles, f"meProp: only the top {k}"), strict=True):
        axis.set_title(title, fontsize=12)
    return figure


def _units(
    axis: Axes, edges: Tensor, x: Tensor, gradient: tuple[Tensor, Tensor] | None, colour: Any
) -> None:
    """Inputs on the left, outputs on the right, and the weights between them that are not zero."""
    outputs, inputs = edges.shape
    left = [(0.0, y) for y in np.linspace(1, 0, inputs)]
    right = [(1.0, y) for y in np.linspace(0.92, 0.08, outputs)]
    strength = edges.abs() / edges.abs().max()
    for o, i in np.ndindex(outputs, inputs):
        weight = float(strength[o, i])
        style = "->" if gradient is None else "<-"
        if weight:
            arrow = FancyArrowPatch(
                left[i], right[o], arrowstyle=style, mutation_scale=8, color=colour,
                linewidth=0.6 + 2 * weight if gradient else 0.9, alpha=0.9 if gradient else 0.6,
                shrinkA=9, shrinkB=13, zorder=1,
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
            ink = "white" if passed else "0.55"
            axis.text(*point, text, color=ink, ha="center", va="center", fontsize=11, zorder=4)
            if not passed:
                axis.text(1.13, point[1], f"{TIMES} 0", color="0.5", fontsize=10, va="center")
    axis.text(0, -0.15, "$x$", ha="center", fontsize=12)
    name = "$y$" if gradient is None else "$\\partial L/\\partial y$"
    axis.text(1, -0.15, name, ha="center", fontsize=12)
    axis.set(xlim=(-0.12, 1.32), ylim=(-0.2, 1.1), aspect="equal")
    axis.set_axis_off()


# The paper's Figure 2


def samples(part: Part, rows: int = 3) -> Figure:
    """The first images of each digit."""
    columns = []
    for digit in range(10):
        chosen = torch.nonzero(part.labels == digit).flatten()[:rows]
        columns.append(torch.cat(list(_padded(part.images[chosen, 0])), dim=0))
    figure, axis = subplots(figsize=(8, 0.8 * rows))
    axis.imshow(torch.cat(columns, dim=1).numpy(), cmap="gray_r", interpolation="none")
    axis.set_axis_off()
    return figure


def _padded(images: Tensor) -> Tensor:
    return torch.nn.functional.pad(images, (2, 2, 2, 2))


# The paper's Figure 3


def network(model: PaperCNN, found: Sequence[Stage], image: Tensor) -> Figure:
    """The layers with what they make of one image, their shapes, and where top-k is applied."""
    activations = _activations(model, image, [stage.name for stage in found])
    figure, axis = subplots(figsize=(9.6, 3.0))
    x, edges = 0.0, []
    axis.imshow(image[0].numpy(), cmap="gray_r", extent=(x, x + 28, -14, 14), zorder=3)
    axis.add_patch(Rectangle((x, -14), 28, 28, fill=False, edgecolor=GREY, zorder=4))
    axis.text(x + 14, -24, f"image\n{_shape(image.shape)}", ha="center", va="top", fontsize=9.5)
    edges.append((x, x + 28))
    for stage in found:
        x = edges[-1][1] + 19
        values = activations[stage.name]
        colour = KEPT if stage.selects else GREY
        if len(stage.shape) == 3:
            right = _stack(axis, values, x, colour)
        else:
            right = _column(axis, values, x, colour, names=len(values) == 10)
        label = f"{stage.name}\n{_shape(stage.shape)}"
        weight = "bold" if stage.selects else "normal"
        axis.text(
            (x + right) / 2, -24, label, ha="center", va="top", fontsize=9.5, fontweight=weight
        )
        if stage.selects:
            note = "top-k on the\nway back"
            axis.annotate(
                note, ((x + right) / 2, 22), ((x + right) / 2, 35), ha="center", fontsize=9,
                color=KEPT, arrowprops={"arrowstyle": "->", "color": KEPT},
            )  # fmt: skip
        axis.annotate(
            "", (x - 3, 0), (edges[-1][1] + 3, 0), arrowprops={"arrowstyle": "->", "color": "0.5"}
        )
        edges.append((x, right))
    axis.set(xlim=(-4, edges[-1][1] + 12), ylim=(-36, 46), aspect="equal")
    axis.set_axis_off()
    return figure


def _activations(model: PaperCNN, image: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """What each layer passes on, after the activation that belongs to it."""
    with torch.no_grad():
        act = torch.relu
        x = model.conv1(image.unsqueeze(0))
        values = {"conv1": act(x), "pool1": model.pool(act(x))}
        x = model.conv2(values["pool1"])
        values |= {"conv2": act(x), "pool2": model.pool(act(x))}
        values["fc1"] = act(model.fc1(values["pool2"].flatten(1)))
        values["fc2"] = model.fc2(values["fc1"]).softmax(dim=1)
    return {name: values[name][0] for name in names}


def _stack(axis: Axes, maps: Tensor, x: float, colour: Any, shown: int = 6) -> float:
    """Some feature maps behind each other, the strongest ones; returns the right edge."""
    size, offset = maps.shape[-1], 3.2
    order = maps.flatten(1).norm(dim=1).argsort(descending=True)[:shown].flip(0)
    for place, index in enumerate(order):
        left = x + offset * (shown - 1 - place)
        bottom = -size / 2 + offset * (shown - 1 - place) - offset * (shown - 1) / 2
        extent = (left, left + size, bottom, bottom + size)
        axis.imshow(maps[index].numpy(), cmap="magma_r", extent=extent, zorder=3 + place)
        axis.add_patch(
            Rectangle((left, bottom), size, size, fill=False, edgecolor=colour, linewidth=1,
                      zorder=3 + place)
        )  # fmt: skip
    return x + size + offset * (shown - 1)


def _column(axis: Axes, values: Tensor, x: float, colour: Any, names: bool) -> float:
    """Units as a column: many as a strip of 16 a row, ten by name."""
    rows = values.reshape(-1, 1) if names else values.reshape(-1, 16)
    height, width = (40.0, 5.0) if names else (46.0, 11.5)
    extent = (x, x + width, -height / 2, height / 2)
    axis.imshow(rows.numpy(), cmap="magma_r", extent=extent, zorder=3, aspect="auto")
    axis.add_patch(
        Rectangle((x, -height / 2), width, height, fill=False, edgecolor=colour, zorder=4)
    )
    if names:
        for digit in range(10):
            y = height / 2 - height * (digit + 0.5) / 10
            chosen = digit == int(values.argmax())
            axis.text(
                x + width + 1.5, y, str(digit), fontsize=8, va="center",
                color="black" if chosen else "0.6", fontweight="bold" if chosen else "normal",
            )  # fmt: skip
    return x + width


def _shape(sizes: Sequence[int]) -> str:
    """Height, width, maps: as the paper writes it."""
    return f" {TIMES} ".join(str(size) for size in [*sizes[1:], sizes[0]])


# The paper's Figure 4


def output_shape(shape: Sequence[int], chosen: str) -> Figure:
    """A convolution's output, and which entries compete with each other under each scope.

    The colours are the groups of `meprop.select`, of a small output; the sizes are those of
    `shape`.
    """
    small = (4, 6, 5, 5)
    figure, axes = subplots(
        1, 5, figsize=(9.6, 2.7), gridspec_kw={"width_ratios": [1.15, 1, 1, 1, 1]}
    )
    _block(axes[0], shape)
    for axis, scope in zip(axes[1:], SCOPES, strict=True):
        found, colour = groups(small, scope), SCOPE_COLOURS[scope]
        for row, column in np.ndindex(*small[:2]):
            number = int(found.ids[row, column, 0, 0])
            # A checkerboard where neighbours in both directions are different groups.
            shade = number + row if scope == "sample" else number
            face = colour if number == 0 else ("0.9", "0.8")[shade % 2]
            axis.add_patch(Rectangle((column, -row), 0.86, 0.86, facecolor=face))
        weight = "bold" if scope == chosen else "normal"
        axis.text(2.93, 2.3, scope, ha="center", fontsize=12, fontweight=weight, color=colour)
        found = groups(shape, scope)
        many = "s" if found.number > 1 else ""
        text = f"{found.number:,} group{many}\nof {found.of}\n= {found.size:,}"
        axis.text(2.93, -3.5, text, ha="center", va="top", fontsize=9.5)
        axis.text(2.93, 1.1, "feature maps", ha="center", va="bottom", fontsize=8, color="0.4")
        axis.text(
            -0.2, -1.07, "images", rotation=90, ha="right", va="center", fontsize=8, color="0.4"
        )
        axis.set(xlim=(-1, 6.1), ylim=(-6.4, 3.2), aspect="equal")
        axis.set_axis_off()
    return figure


def _block(axis: Axes, shape: Sequence[int]) -> None:
    """m images, each a stack of c feature maps of h by w."""
    m, c, h, w = shape
    sheets, shift, apart = 5, 0.34, 4.1
    for image in range(2):
        for sheet in range(sheets):
            left = shift * (sheets - 1 - sheet)
            face = SCOPE_COLOURS["map"] if sheet == sheets - 1 else ("0.9", "0.8")[sheet % 2]
            corner = (left, left - apart * image)
            axis.add_patch(Rectangle(corner, 2.2, 2.2, facecolor=face, edgecolor="white"))
    axis.text(1.1, 1.1, "a map", color="white", ha="center", va="center", fontsize=9)
    axis.text(-0.2, 1.1, f"h = {h}", rotation=90, ha="right", va="center", fontsize=9)
    axis.text(1.1, -0.15, f"w = {w}", ha="center", va="top", fontsize=9)
    axis.text(0.25, 3.35, f"c = {c}", rotation=45, ha="center", va="center", fontsize=9)
    axis.annotate("", (4.2, -apart), (4.2, 3.6), arrowprops={"arrowstyle": "<->", "color": "0.4"})
    axis.text(4.4, -0.2, f"m = {m}", rotation=90, ha="left", va="center", fontsize=9)
    axis.set(xlim=(-1, 5.2), ylim=(-4.4, 4.4), aspect="equal")
    axis.set_axis_off()


# Real gradients


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


# run_grad


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


# The weight gradient


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
