"""The figures of one run: what the training notebook shows of its record."""

from __future__ import annotations

import numpy as np
import pandas
import seaborn
from matplotlib.ticker import MaxNLocator

from meprop.study.data import SIDE, Part
from meprop.study.figures.style import COLOURS, Figure, logarithmic, subplots
from meprop.study.network import LAYERS
from meprop.study.record import Record


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
    logarithmic(axes[0], "{x:g}")
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
    logarithmic(axis, "{x:g}%")
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
