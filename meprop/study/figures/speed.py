"""What `meprop.bench.figures` does not draw: density, where dense wins, what is saved for free."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from meprop.bench.results import Row
from meprop.study.report.speed import NOTHING, counting, left, savings, skipping
from meprop.study.style import PALETTE, Figure, subplots

LAYERS = {"conv1": 3, "conv2": 9, "wide": 2, "large": 4}  # colours of the palette
LIMITS = (1 / 16, 16)


def density(rows: Sequence[Row]) -> Figure | None:
    """Speed-up against the nonzero share that is left, wherever the zeros come from."""
    rows = skipping(rows)
    if not rows:
        return None
    figure, axis = subplots(figsize=(8, 4))
    for layer, colour in LAYERS.items():
        for gradient, marker in (("full", "o"), ("natural", "D")):
            own = [row for row in rows if (row.subject, row.gradient) == (layer, gradient)]
            points = sorted((100 * left(row), row.speedup["dense"]["median"]) for row in own)
            if points:
                look = {"color": PALETTE[colour], "markeredgecolor": "white", "markersize": 8}
                line = "-" if gradient == "full" else ""
                label = f"{layer}, {gradient}"
                axis.plot(*zip(*points, strict=True), f"{marker}{line}", **look, label=label)
    axis.axhline(1, color="0.3", linewidth=1)
    axis.set(xscale="log", yscale="log", ylabel="times as fast as dense")
    axis.set(xlabel="nonzero share of the gradient that is left (%)")
    for each, subs in ((axis.xaxis, (1, 2, 5)), (axis.yaxis, (1, 2, 5))):
        each.set_major_locator(LogLocator(10, subs=subs))
        each.set_minor_locator(NullLocator())
        each.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def dense_wins(rows: Sequence[Row]) -> Figure | None:
    """Speed-up by layer, gradient, share kept and threads; orange where dense is faster."""
    counts = [count for count in (1, 2) if skipping(counting(rows, count))]
    if not counts:
        return None
    figure, axes = subplots(1, len(counts), figsize=(1 + 4.5 * len(counts), 4.2), squeeze=False)
    for axis, threads in zip(axes[0], counts, strict=True):
        own = skipping(counting(rows, threads))
        names = list(dict.fromkeys((row.subject, row.gradient, row.density) for row in own))
        ratios = sorted({row.ratio for row in own if row.ratio is not None})
        table = np.full((len(names), len(ratios)), np.nan)
        for row in own:
            place = names.index((row.subject, row.gradient, row.density))
            table[place, ratios.index(row.ratio or 1.0)] = row.speedup["dense"]["median"]
        axis.pcolormesh(table, cmap="PuOr", norm=LogNorm(*LIMITS), edgecolors="white", linewidth=1)
        for (y, x), value in np.ndenumerate(table):
            look = {"color": "white" if not 1 / 6 < value < 6 else "0.1", "size": 9}
            text = (
                f"{value:.0f}"
                if value >= 9.95
                else f"{value:.1f}"
                if value >= 0.95
                else f"{value:.2f}"
            )
            if not np.isnan(value):
                axis.text(x + 0.5, y + 0.5, text, ha="center", va="center", **look)
        labels = [f"{ratio:.3g}%" for ratio in np.array(ratios[:-1]) * 100]
        axis.set_xticks(np.arange(len(ratios)) + 0.5, [*labels, "all"], size=9)
        axis.set(xlabel="share kept", title=f"{threads} thread{'s' * (threads > 1)}")
        axis.invert_yaxis()
        axis.grid(visible=False)
        shown = [f"{layer}, {share:.0%} nonzero" for layer, _, share in names]
        axis.set_yticks(np.arange(len(names)) + 0.5, shown if axis is axes[0][0] else [], size=9)
    return figure


def free(rows: Sequence[Row]) -> Figure | None:
    """Of the dense time, what skipping zeros saves, and what selecting the top 5% adds."""
    found = savings(rows)
    if not found:
        return None
    figure, axis = subplots(figsize=(8, 0.5 * len(found) + 1.4))
    for y, each in enumerate(found):
        exact, selected = 100 * max(0.0, each.exact), 100 * max(0.0, each.selected)
        low = min(exact, selected)
        axis.barh(y, low, color=PALETTE[2], label="zeros skipped, exact" if y == 0 else None)
        label = "top 5% selected, in addition" if y == 0 else None
        axis.barh(y, selected - low, left=low, color=PALETTE[0], label=label)
        words = f"{each.free:.0%} free" if each.selected > NOTHING else "none saved"
        axis.text(selected, y, f" {words}", va="center", size=10)
    axis.set_yticks(range(len(found)), [each.work for each in found])
    axis.set(xlabel="% of the dense time that is saved")
    axis.margins(x=0.2)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.legend(loc="lower right")
    return figure
