"""The paper's four figures, drawn from the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle
from torch import Tensor

from meprop import Linear, TopK, select
from meprop.study.data import Part
from meprop.study.figures.method.palette import GREY, KEPT, SCOPE_COLOURS
from meprop.study.network import PaperCNN
from meprop.study.report.method import SCOPES, Stage, groups
from meprop.study.style import Figure, subplots
from meprop.study.words import TIMES


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


def samples(part: Part, rows: int = 3) -> Figure:
    """The first images of each digit."""
    columns = []
    for digit in range(10):
        chosen = torch.nonzero(part.labels == digit).flatten()[:rows]
        images, _ = part[chosen]
        columns.append(torch.cat(list(_padded(images[:, 0])), dim=0))
    figure, axis = subplots(figsize=(8, 0.8 * rows))
    axis.imshow(torch.cat(columns, dim=1).numpy(), cmap="gray_r", interpolation="none")
    axis.set_axis_off()
    return figure


def _padded(images: Tensor) -> Tensor:
    return torch.nn.functional.pad(images, (2, 2, 2, 2))


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
