"""The results as figures: one message each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from meprop.bench.results import LINE_RATIOS, Row, cost_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {"forward": 0, "backward": 1, "update": 2, "masked": 1, "sparse": 0}
PARTS = ("forward", "backward", "update")
STYLES = {"full": "-", "natural": "--"}


def save(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw what there is data for, at the lowest thread count that was measured."""
    if not rows:
        return []
    import seaborn

    folder.mkdir(parents=True, exist_ok=True)
    threads = min(row.threads for row in rows)
    best = [row for row in rows if row.best and row.threads == threads]
    paths = []
    drawings: dict[str, Callable[[list[Row]], Figure | None]] = {
        "layers": layers,
        "cost": cost,
        "steps": steps,
    }
    with seaborn.axes_style("whitegrid"):
        for name, draw in drawings.items():
            figure = draw(best)
            if figure is not None:
                paths.append(folder / f"{name}.png")
                figure.savefig(paths[-1], dpi=150)
    return paths


def layers(rows: list[Row]) -> Figure | None:
    """Speed-up against the share that is kept, for each layer."""
    rows = [row for row in rows if row.group == "layer" and row.contender in ("masked", "sparse")]
    if not rows:
        return None
    figure, axes = _panels(rows, "Backward pass of one layer: median and quartiles of all rounds")
    for subject, axis in axes.items():
        here = [row for row in rows if row.subject == subject]
        for name in ("masked", "sparse"):
            for gradient, style in STYLES.items():
                points = [r for r in here if (r.contender, r.gradient) == (name, gradient)]
                label = f"{name}, {gradient} gradient"
                _band(axis, points, color=_colour(name), linestyle=style, label=label)
        axis.axhline(1, color="0.3", linewidth=1)
        axis.set(xscale="log", yscale="log", title=f"{subject}: {here[0].shape}")
        axis.set(xlabel="share of the gradient that is kept (%)", ylabel="times as fast as dense")
        _plain_numbers(axis)
    _legend(figure, axis)
    return figure


def cost(rows: list[Row]) -> Figure | None:
    """Time of a sparse backward pass against the ratio, with the fitted lines."""
    lines = cost_lines(rows)
    if not lines:
        return None
    subjects = [line.subject for line in lines]
    rows = [r for r in rows if (r.group, r.gradient) == ("layer", "full") and r.subject in subjects]
    figure, axes = _panels(rows, "Cost of a sparse backward pass against what is kept")
    for line in lines:
        axis = axes[line.subject]
        points = sorted(
            (100 * row.ratio, 1 / row.speedup["dense"]["median"])
            for row in rows
            if (row.contender, row.subject) == ("sparse", line.subject)
            if row.ratio is not None and row.ratio <= LINE_RATIOS[1]
        )
        x, y = zip(*points, strict=True)
        axis.plot(x, y, "o", color=_colour("sparse"), label="measured")
        ends = np.array([0, 25])
        fitted = line.intercept + line.slope * ends / 100
        axis.plot(ends, fitted, color=_colour("sparse"), label=f"line, R² = {line.r2:.3f}")
        axis.set(xlabel="share of the gradient that is kept (%)", title=line.subject)
        axis.set(ylabel="time / time of dense", ylim=(0, None))
        axis.legend(fontsize="small")
    return figure


def steps(rows: list[Row]) -> Figure | None:
    """Time of a whole training step, by its parts."""
    rows = [row for row in rows if row.group == "step"]
    if not rows:
        return None
    figure, axes = _panels(rows, "Whole training steps: medians, and times as fast as dense")
    for subject, axis in axes.items():
        here = [row for row in rows if row.subject == subject]
        names = [row.contender for row in here]
        left = np.zeros(len(here))
        for part in PARTS:
            widths = np.array([row.parts[part] for row in here])
            axis.barh(names, widths, left=left, color=_colour(part), label=part)
            left += widths
        for name, end, row in zip(names, left, here, strict=True):
            axis.text(end, name, f" {row.speedup['dense']['median']:.2f}", va="center")
        axis.invert_yaxis()
        axis.margins(x=0.12)
        axis.grid(visible=False, axis="y")
        axis.set(xlabel="milliseconds a step", title=subject)
    _legend(figure, axis)
    return figure


def _panels(rows: list[Row], title: str) -> tuple[Figure, dict[str, Any]]:
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row.subject for row in rows))
    columns = min(2, len(names))
    count = -(-len(names) // columns)
    figure = Figure(figsize=(1 + 4.5 * columns, 1 + 3.2 * count), layout="constrained")
    threads = rows[0].threads
    figure.suptitle(f"{title} ({threads} thread{'s' * (threads > 1)})", fontsize="medium")
    grid = figure.subplots(count, columns, squeeze=False).flatten()
    for axis in grid[len(names) :]:
        axis.remove()
    return figure, dict(zip(names, grid, strict=False))


def _legend(figure: Figure, axis: Any) -> None:
    """One for all panels, below them."""
    handles, labels = axis.get_legend_handles_labels()
    columns = 4 if figure.get_figwidth() > 7 else 2
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize="small")


def _band(axis: Any, rows: list[Row], **look: Any) -> None:
    rows = sorted(rows, key=lambda row: row.ratio or 0)
    x = [100 * (row.ratio or 0) for row in rows]
    spread = [row.speedup["dense"] for row in rows]
    axis.plot(x, [s["median"] for s in spread], marker="o", markersize=4, **look)
    low, high = [s["q25"] for s in spread], [s["q75"] for s in spread]
    axis.fill_between(x, low, high, color=look["color"], alpha=0.2, linewidth=0)


def _plain_numbers(axis: Any) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    for each, subs in ((axis.xaxis, (1, 5)), (axis.yaxis, (1, 2, 5))):
        each.set_major_locator(LogLocator(10, subs=subs))
        each.set_major_formatter(StrMethodFormatter("{x:g}"))
        each.set_minor_formatter(NullFormatter())


def _colour(name: str) -> Any:
    import seaborn

    return seaborn.color_palette("colorblind")[COLOURS[name]]
