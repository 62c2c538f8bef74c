"""The results as figures: one message each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from meprop.bench.results import LINE_RATIOS, Row, cost_lines, kinds

if TYPE_CHECKING:
    from meprop.study.style import Figure

COLOURS = {"forward": 0, "backward": 1, "update": 2, "masked": 1, "sparse": 0}
KINDS = {"conv": "convolutions", "between": "between them", "fc": "fully connected"}
PARTS = ("forward", "backward", "update")
STYLES = {"full": "-", "natural": "--"}


def save(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw what there is data for, at the lowest thread count that was measured."""
    if not rows:
        return []
    import matplotlib.pyplot as plt

    from meprop.study.style import SHEETS

    folder.mkdir(parents=True, exist_ok=True)
    threads = min(row.threads for row in rows)
    best = [row for row in rows if row.best and row.threads == threads]
    paths = []
    drawings: dict[str, Callable[[list[Row]], Figure | None]] = {
        "layers": layers,
        "cost": cost,
        "steps": steps,
        "split": split,
    }
    with plt.style.context(SHEETS):
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


def split(rows: list[Row]) -> Figure | None:
    """Where the time of a training step goes, as shares of the dense one."""
    rows = [row for row in rows if row.group == "split"]
    if not rows:
        return None
    figure, axes = _panels(rows, "Parts of a training step, as shares of the dense one")
    for subject, axis in axes.items():
        here = {row.contender: row for row in rows if row.subject == subject}
        alone = 100 * kinds(here.pop("selection").parts)["conv selection"]
        whole = sum(here["dense"].parts.values())
        for y, row in enumerate(here.values()):
            times, left = kinds(row.parts), 0.0
            for name, label, look in _looks():
                width = 100 * times[name] / whole
                axis.barh(y, width, left=left, label=label if y == 0 else None, **look)
                if name == "conv backward" and row.ratio is not None:
                    look = {"facecolor": "none", "hatch": "////", "edgecolor": "white"}
                    axis.barh(y, alone / whole, left=left, **look)
                left += width
            axis.text(left, y, f" {left:.0f}%", va="center")
        axis.set_yticks(range(len(here)), list(here))
        axis.invert_yaxis()
        axis.margins(x=0.14)
        axis.grid(visible=False, axis="y")
        axis.set_axisbelow(True)
        axis.set(xlabel="% of the dense step", title=subject)
    _legend(figure, axis)
    return figure


def _looks() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The parts of a split step in the order of their bars: name, label, look."""
    from meprop.study.style import PALETTE

    for direction, alpha in (("forward", 0.45), ("backward", 1.0)):
        for number, (kind, label) in enumerate(KINDS.items()):
            look = {"color": PALETTE[number], "alpha": alpha}
            yield f"{kind} {direction}", f"{label}, {direction}", look
    yield "update", "update (Adam)", {"color": "0.6"}


def _panels(rows: list[Row], title: str) -> tuple[Figure, dict[str, Any]]:
    from meprop.study.style import Figure

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
    from meprop.study.style import PALETTE

    return PALETTE[COLOURS[name]]
