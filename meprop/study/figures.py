"""The figures of the book: one palette, one style, one message each.

A function returns a closed figure, so that a notebook cell shows it once, or None where there is
nothing to show.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas
import seaborn
from IPython import get_ipython
from matplotlib import figure as matplotlib_figure
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter
from PIL import Image

from meprop.study.data import SIDE, Part
from meprop.study.network import LAYERS
from meprop.study.record import Record

# Told apart by every kind of colour vision, and in print.
PALETTE = seaborn.color_palette("colorblind")
# The same thing has the same colour on every page.
COLOURS = {
    **dict(zip(("train", "dev", "test"), PALETTE, strict=False)),
    **dict(zip(LAYERS, (PALETTE[i] for i in (3, 9, 4, 7)), strict=True)),
}


class Figure(matplotlib_figure.Figure):
    """A figure that a notebook stores at a third of the usual size: there are hundreds of them."""

    def small_png(self) -> bytes:
        """The picture with 64 colours."""
        drawn, packed = BytesIO(), BytesIO()
        # A white ground stays legible on a dark page.
        self.savefig(drawn, format="png", dpi=108, facecolor="white")
        image = Image.open(drawn).convert("RGB").quantize(64, dither=Image.Dither.NONE)
        image.save(packed, format="png", optimize=True)
        return packed.getvalue()


def set_style() -> None:
    """Use the book's style for all figures from here on."""
    seaborn.set_theme(context="notebook", style="whitegrid", palette=PALETTE)
    plt.rcParams.update({"figure.dpi": 72, "figure.constrained_layout.use": True})
    if (shell := get_ipython()) is not None:
        shell.display_formatter.formatters["image/png"].for_type(Figure, Figure.small_png)


def subplots(*arguments: Any, **options: Any) -> tuple[Figure, Any]:
    """As pyplot's, closed already: nobody but the caller shows it."""
    figure, axes = plt.subplots(*arguments, FigureClass=Figure, **options)
    plt.close(figure)
    return figure, axes


def learning_curves(record: Record) -> Figure | None:
    """Loss and accuracy against epoch; the chosen epoch is marked."""
    if not record.history:
        return None
    epochs = pandas.DataFrame(record.history)
    figure, axes = subplots(1, 2, figsize=(9, 3.4))
    for axis, what, parts in (
        (axes[0], "loss", ("train", "dev")),
        (axes[1], "accuracy", ("train", "dev", "test")),
    ):
        long = epochs.melt("epoch", [f"{part}_{what}" for part in parts], "part", what)
        long["part"] = long["part"].str.removesuffix(f"_{what}")
        seaborn.lineplot(
            long,
            x="epoch",
            y=what,
            hue="part",
            palette=COLOURS,
            marker="o",
            estimator=None,  # one value an epoch: nothing to average
            ax=axis,
        )
        axis.axvline(record.best_epoch, color="0.4", linestyle=":", label="chosen")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.legend(title=None)
    axes[0].set(ylabel="mean cross-entropy")
    _logarithmic(axes[0], "{x:g}")
    axes[1].set(ylabel="accuracy (%)")
    return figure


def densities(record: Record) -> Figure | None:
    """Nonzero share of the gradient at each layer's output, before and after selection."""
    if not record.history:
        return None
    rows = [
        {"epoch": epoch["epoch"], "layer": layer, "selection": name, "share": 100 * seen[name]}
        for epoch in record.history
        for layer, seen in epoch["layers"].items()
        if layer in LAYERS[:3]  # what arrives at fc2's output is the loss's own, never sparse
        for name in ("before", "after")
        if name in seen
    ]
    figure, axis = subplots(figsize=(7, 3.4))
    seaborn.lineplot(
        pandas.DataFrame(rows),
        x="epoch",
        y="share",
        hue="layer",
        style="selection",
        palette=COLOURS,
        markers=True,
        estimator=None,
        ax=axis,
    )
    axis.set(ylabel="nonzero entries")
    _logarithmic(axis, "{x:g}%")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    seaborn.move_legend(axis, "center left", bbox_to_anchor=(1, 0.5), title=None)
    return figure


def shares(record: Record) -> pandas.DataFrame | None:
    """The numbers behind `densities` in the chosen epoch, in percent."""
    if record.best_epoch is None:
        return None
    names = {
        "before": "nonzero before (%)",
        "after": "nonzero after (%)",
        "norm_kept": "norm kept (%)",
        "weight": "nonzero in weight gradient (%)",
    }
    layers = record.history[record.best_epoch - 1]["layers"]
    table = pandas.DataFrame.from_dict(layers, orient="index").reindex(columns=list(names))
    return (100 * table.rename(columns=names)).round(2)


def confusion(record: Record, part: Part) -> Figure | None:
    """How often each digit was taken for another; what was right is left out."""
    if record.test_errors is None:
        return None
    digits = part.labels[record.test_errors].numpy()
    counts, _, _ = np.histogram2d(digits, _predictions(record), bins=10, range=[[0, 10]] * 2)
    counts = counts.astype(int)
    figure, axis = subplots(figsize=(4.6, 3.8))
    seaborn.heatmap(
        counts,
        annot=True,
        fmt="d",
        annot_kws={"size": 8},
        mask=counts == 0,
        cmap="Blues",
        linewidths=0.5,
        cbar=False,
        square=True,
        ax=axis,
    )
    axis.set(xlabel="taken for", ylabel="digit")
    axis.tick_params(axis="y", rotation=0)
    return figure


def mistakes(record: Record, part: Part) -> Figure | None:
    """The first misclassified images, each with its digit and what it was taken for."""
    if record.test_errors is None:
        return None
    rows, columns, gap = 2, 12, 10  # one picture of all is drawn far faster than 24 plots
    sheet = np.zeros((rows * (SIDE + gap), columns * (SIDE + 2)))
    figure, axis = subplots(figsize=(9, 2))
    errors = list(zip(record.test_errors, _predictions(record), strict=True))
    for place, (index, guess) in enumerate(errors[: rows * columns]):
        y, x = place // columns * (SIDE + gap) + gap, place % columns * (SIDE + 2)
        sheet[y : y + SIDE, x : x + SIDE] = part.images[index, 0]
        title = f"{int(part.labels[index])}, not {guess}"
        axis.text(x + SIDE / 2, y - 2, title, fontsize=8, ha="center", va="bottom")
    axis.imshow(sheet, cmap="gray_r", interpolation="none")
    axis.set_axis_off()
    return figure


def _predictions(record: Record) -> list[int]:
    return record.test_predictions or []


def _logarithmic(axis: Axes, label: str) -> None:
    """A logarithmic y axis with plain numbers."""
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(StrMethodFormatter(label))
