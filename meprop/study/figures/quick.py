"""The figure of the quick suite: this machine beside the reference."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.ticker import MaxNLocator

from meprop.study.report.quick import Row, first_loss, seconds
from meprop.study.style import PALETTE, Figure, subplots


def sides(rows: Sequence[Row]) -> Figure | None:
    """Test accuracy, the first epoch's loss and the time of every run, on both sides."""
    if not any(row.here or row.reference for row in rows):
        return None
    figure, axes = subplots(1, 3, figsize=(9, 0.3 * len(rows) + 1.6), sharey=True)
    styles = (("reference", PALETTE[1], "D", 8, "none"), ("here", PALETTE[0], "o", 5, PALETTE[0]))
    for side, colour, marker, size, face in styles:
        records = [getattr(row, side) for row in rows]
        values = (
            [math.nan if r is None else r.test_accuracy for r in records],
            [first_loss(r) for r in records],
            [seconds(r) for r in records],
        )
        for axis, points in zip(axes, values, strict=True):
            axis.plot(
                points,
                range(len(rows)),
                marker,
                color=colour,
                markerfacecolor=face,
                markersize=size,
                label=side if side == "reference" else "this machine",
            )
    for axis, name in zip(axes, ("test accuracy (%)", "loss of epoch 1", "seconds"), strict=True):
        axis.set(xlabel=name)
        axis.grid(visible=False, axis="y")
        axis.xaxis.set_major_locator(MaxNLocator(4))
    axes[2].set_xlim(left=0)
    axes[0].set_yticks(range(len(rows)), [row.label for row in rows], fontsize="small")
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=2, frameon=False)
    return figure
