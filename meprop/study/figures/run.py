"""The figures of one run: what the training notebook shows of its record."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from meprop.study.data import SIDE, Part
from meprop.study.network import LAYERS
from meprop.study.record import Record
from meprop.study.style import COLOURS, Figure, logarithmic, subplots


def learning_curves(record: Record) -> Figure | None:
    """Loss and accuracy against epoch; the chosen epoch is marked."""
    if not record.history:
        return None
    epochs = [epoch["epoch"] for epoch in record.history]
    figure, axes = subplots(1, 2, figsize=(9, 3.4))
    for axis, what, parts in (
        (axes[0], "loss", ("train", "dev")),
        (axes[1], "accuracy", ("train", "dev", "test")),
    ):
        for part in parts:
            values = [epoch[f"{part}_{what}"] for epoch in record.history]
            axis.plot(epochs, values, "o-", **_look(part), label=part)
        axis.axvline(record.best_epoch, color="0.4", linestyle=":", label="chosen")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.legend()
    axes[0].set(xlabel="epoch", ylabel="mean cross-entropy")
    logarithmic(axes[0], "{x:g}")
    axes[1].set(xlabel="epoch", ylabel="accuracy (%)")
    return figure


def densities(record: Record) -> Figure | None:
    """Nonzero share of the gradient at each layer's output, before and after selection."""
    if not record.history:
        return None
    epochs = [epoch["epoch"] for epoch in record.history]
    figure, axis = subplots(figsize=(7, 3.4))
    styles: dict[str, dict[str, Any]] = {
        "before": {"marker": "o"},
        "after": {"marker": "X", "linestyle": "--"},
    }
    for layer in LAYERS[:3]:  # what arrives at fc2's output is the loss's own, never sparse
        for name, style in styles.items():
            seen = [epoch["layers"][layer] for epoch in record.history]
            shares = [100 * each.get(name, math.nan) for each in seen]
            label = layer if name == "before" else None
            axis.plot(epochs, shares, **style, **_look(layer), label=label)
    axis.set(xlabel="epoch", ylabel="nonzero entries")
    logarithmic(axis, "{x:g}%")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles = axis.get_legend_handles_labels()[0] + [
        Line2D([], [], color="0.4", **style, label=f"{name} selection")
        for name, style in styles.items()
    ]
    axis.legend(handles=handles, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def confusion(record: Record, part: Part) -> Figure | None:
    """How often each digit was taken for another; what was right is left out."""
    if record.test_errors is None:
        return None
    digits = part.labels[record.test_errors].numpy()
    counts, _, _ = np.histogram2d(digits, _predictions(record), bins=10, range=[[0, 10]] * 2)
    counts = counts.astype(int)
    figure, axis = subplots(figsize=(4.6, 3.8))
    shown = np.ma.masked_equal(counts, 0)
    axis.pcolormesh(shown, cmap="Blues", vmin=0, edgecolors="white", linewidth=0.5)
    for row, column in np.argwhere(counts):
        colour = "white" if counts[row, column] > counts.max() / 2 else "0.15"
        place = {"ha": "center", "va": "center"}
        axis.text(column + 0.5, row + 0.5, counts[row, column], size=8, color=colour, **place)
    places = np.arange(10) + 0.5
    axis.set(xlabel="taken for", ylabel="digit", aspect="equal")
    axis.set_xticks(places, range(10))
    axis.set_yticks(places, range(10))
    axis.invert_yaxis()
    axis.grid(visible=False)
    return figure


def mistakes(record: Record, part: Part) -> Figure | None:
    """The first misclassified images, each with its digit and what it was taken for."""
    if record.test_errors is None:
        return None
    rows, columns, gap = 2, 12, 10  # one picture of all is drawn far faster than 24 plots
    sheet = np.zeros((rows * (SIDE + gap), columns * (SIDE + 2)))
    figure, axis = subplots(figsize=(9, 2))
    images, labels = part[record.test_errors[: rows * columns]]
    guesses = _predictions(record)[: rows * columns]
    for place, (image, label, guess) in enumerate(zip(images, labels, guesses, strict=True)):
        y, x = place // columns * (SIDE + gap) + gap, place % columns * (SIDE + 2)
        sheet[y : y + SIDE, x : x + SIDE] = image[0]
        title = f"{int(label)}, not {guess}"
        axis.text(x + SIDE / 2, y - 2, title, fontsize=8, ha="center", va="bottom")
    axis.imshow(sheet, cmap="gray_r", interpolation="none")
    axis.set_axis_off()
    return figure


def _predictions(record: Record) -> list[int]:
    return record.test_predictions or []


def _look(name: str) -> dict[str, Any]:
    return {"color": COLOURS[name], "markeredgecolor": "white"}
