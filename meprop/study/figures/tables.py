"""The figures of Tables 2 and 3: scores beside the paper's, learning curves, gaps."""

from __future__ import annotations

from collections.abc import Sequence

import pandas
import seaborn
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from meprop.study.report.statistics import Interval
from meprop.study.report.tables import Compared
from meprop.study.style import PALETTE, Figure, subplots

OURS, THEIRS = PALETTE[0], PALETTE[1]


def scores(compared: Sequence[Compared]) -> Figure:
    """Test accuracy of each row, and its difference to the baseline: the paper's and ours."""
    figure, axes = subplots(1, 2, figsize=(9, 0.42 * len(compared) + 1.6), sharey=True)
    baseline = compared[0]
    for place, row in enumerate(compared):
        if row.paper is not None:
            _diamond(axes[0], row.paper.test, place)
            if baseline.paper is not None and place:
                _diamond(axes[1], row.paper.test - baseline.paper.test, place)
        _dots(axes[0], [record.test_accuracy or 0 for record in row.records.values()], place)
        _bar(axes[0], row.test, place)
        if place:
            pairs = sorted(row.records.keys() & baseline.records.keys())
            _dots(
                axes[1],
                [
                    (row.records[seed].test_accuracy or 0)
                    - (baseline.records[seed].test_accuracy or 0)
                    for seed in pairs
                ],
                place,
            )
            _bar(axes[1], row.difference, place)
    axes[1].axvline(0, color="0.4", linewidth=1)
    axes[0].set(xlabel="test accuracy (%)")
    axes[1].set(xlabel="difference to the baseline (points)")
    axes[0].set_yticks(range(len(compared)), [row.label for row in compared])
    axes[0].set_ylim(len(compared) - 0.5, -0.5)
    for axis in axes:
        axis.grid(visible=False, axis="y")
        axis.xaxis.set_major_locator(MaxNLocator(5))
    handles = [
        Line2D([], [], marker="D", linestyle="", mfc="white", mec=THEIRS, label="paper, one run"),
        Line2D([], [], marker="o", linestyle="", color=OURS, alpha=0.6, label="ours, a seed each"),
    ]
    if any(row.test.known for row in compared):
        handles.append(Line2D([], [], marker="|", color=OURS, label="ours, mean and 95% interval"))
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False)
    return figure


def curves(compared: Sequence[Compared]) -> Figure | None:
    """Development accuracy and training loss against epoch, a line a row, seeds averaged."""
    rows = [
        {"epoch": epoch["epoch"], "seed": seed}
        | dict(zip(("top-k", "decay"), _parts(row), strict=True))
        | {"dev": epoch["dev_accuracy"], "loss": epoch["train_loss"]}
        for row in compared
        for seed, record in row.records.items()
        for epoch in record.history
    ]
    if not rows:
        return None
    figure, axes = subplots(1, 2, figsize=(9, 3.6))
    ratios = list(dict.fromkeys(_parts(row)[0] for row in compared))
    decays = list(dict.fromkeys(_parts(row)[1] for row in compared))
    # The baseline is what the others are compared with.
    palette = dict(zip(ratios, ["0.2", *PALETTE], strict=False))
    dashes = dict(zip(decays, ["", (4, 1.5), (1, 1)], strict=False))
    for axis, what, name in (
        (axes[0], "dev", "development accuracy (%)"),
        (axes[1], "loss", "training loss"),
    ):
        seaborn.lineplot(
            pandas.DataFrame(rows),
            x="epoch",
            y=what,
            hue="top-k",
            style="decay",
            hue_order=[ratio for ratio in ratios if ratio in {row["top-k"] for row in rows}],
            style_order=[decay for decay in decays if decay in {row["decay"] for row in rows}],
            palette=palette,
            dashes=dashes,
            errorbar=("pi", 100) if any(len(row.records) > 1 for row in compared) else None,
            linewidth=1.4,
            ax=axis,
        )
        axis.set(ylabel=name)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[1].set_yscale("log")
    # From where the differences show.
    lowest = min(row["dev"] for row in rows if row["epoch"] > 2 or len(rows) < 10)
    axes[0].set_ylim(bottom=lowest - 0.05)
    handles, names = axes[0].get_legend_handles_labels()
    for axis in axes:
        axis.get_legend().remove()
    figure.legend(handles, names, loc="outside right center", frameon=False, fontsize="small")
    return figure


def gaps(compared: Sequence[Compared]) -> Figure | None:
    """How far training, development and test accuracy lie apart in the chosen epoch."""
    done = [row for row in compared if row.records]
    if not done:
        return None
    figure, axes = subplots(1, 2, figsize=(9, 0.42 * len(done) + 1.6), sharey=True)
    for axis, (first, second) in zip(axes, (("train", "test"), ("dev", "test")), strict=True):
        for place, row in enumerate(done):
            gap = row.gap(first, second)
            axis.barh(place, gap.mean, height=0.6, color=OURS, alpha=0.75)
            if gap.known:
                axis.plot([gap.low, gap.high], [place] * 2, color="0.2", linewidth=1.5)
            if (first, second) == ("dev", "test") and row.paper is not None:
                _diamond(axis, row.paper.dev - row.paper.test, place + 0.12)
        axis.set(xlabel=f"{first} - {second} accuracy (points)")
        axis.grid(visible=False, axis="y")
    axes[0].set_yticks(range(len(done)), [row.label for row in done])
    axes[0].set_ylim(len(done) - 0.5, -0.5)
    diamond = Line2D([], [], marker="D", linestyle="", mfc="white", mec=THEIRS, label="paper")
    axes[1].legend(handles=[diamond], loc="best", fontsize="small")
    return figure


def _parts(row: Compared) -> tuple[str, str]:
    ratio, _, decay = row.label.partition(", decay ")
    return ratio, decay or "0"


def _diamond(axis: Axes, value: float, place: float) -> None:
    axis.plot(value, place - 0.12, "D", mfc="white", mec=THEIRS, mew=1.6, markersize=6)


def _dots(axis: Axes, values: Sequence[float], place: float) -> None:
    axis.plot(values, [place + 0.12] * len(values), "o", color=OURS, alpha=0.6, markersize=6)


def _bar(axis: Axes, found: Interval, place: float) -> None:
    if found.known:
        axis.plot([found.low, found.high], [place + 0.12] * 2, color=OURS, linewidth=1.6)
        axis.plot(found.mean, place + 0.12, "|", color=OURS, markersize=13, mew=2)
