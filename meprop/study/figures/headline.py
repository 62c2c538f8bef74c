"""The figure that opens README: does it hold up, and is it faster?"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from meprop.study.report.claims.evidence import Evidence
from meprop.study.report.tables import TABLES, Compared, compare
from meprop.study.style import PALETTE, Figure, subplots

OURS, THEIRS = PALETTE[0], PALETTE[1]
# Case of the benchmark, contender, and how it reads.
SPEEDS = (
    ("layer/conv2/full/1%/1-thread", "sparse", "conv2 backward, 1%"),
    ("layer/conv2/full/5%/1-thread", "sparse", "conv2 backward, 5%"),
    ("step/resnet18/1-thread", "meprop", "resnet18 step, 5%"),
    ("step/PaperCNN/1-thread", "meprop", "paper's network, step, 5%"),
)


def headline(evidence: Evidence | None = None) -> Figure:
    """Left, accuracy at 5% against the baseline; right, times as fast as dense PyTorch."""
    evidence = evidence or Evidence()
    figure, axes = subplots(1, 2, figsize=(9, 3.1), width_ratios=(1.15, 1))
    rows = [
        (f"Table {number}, {row.label}", row, compared[0])
        for number in TABLES
        for compared in [compare(number, evidence.paper)]
        for row in compared[1:]
        if row.paper is not None and row.paper.k == 5
    ]
    handles = _accuracy(axes[0], rows)
    _speed(axes[1], evidence)
    figure.legend(
        handles=handles, loc="outside lower left", ncols=2, frameon=False, fontsize="small"
    )
    return figure


def _accuracy(axis: Axes, rows: Sequence[tuple[str, Compared, Compared]]) -> list[Line2D]:
    axis.axvspan(-0.1, 0.1, color="0.93", zorder=0)
    axis.axvline(0, color="0.4", linewidth=1)
    for place, (_, row, baseline) in enumerate(rows):
        assert row.paper is not None and baseline.paper is not None
        theirs = row.paper.test - baseline.paper.test
        axis.plot(theirs, place - 0.14, "D", mfc="white", mec=THEIRS, mew=1.6, markersize=6)
        found = row.difference
        if found.known:
            axis.plot([found.low, found.high], [place + 0.14] * 2, color=OURS, linewidth=2)
        if found.n:
            fill = OURS if found.known else "white"
            axis.plot(found.mean, place + 0.14, "o", color=OURS, mfc=fill, markersize=7)
    axis.set_yticks(range(len(rows)), [label for label, *_ in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.grid(visible=False, axis="y")
    axis.set_title("Test accuracy, minus the baseline's (points)", size=10.5, loc="left")
    seeds = max(row.difference.n for _, row, _ in rows)
    ours = f"ours, {seeds} seeds" if seeds > 1 else "ours, one seed" if seeds else "ours: to come"
    handles = [
        Line2D([], [], marker="D", linestyle="", mfc="white", mec=THEIRS, label="paper"),
        Line2D([], [], marker="o", linestyle="", color=OURS, mfc="white", label=ours),
    ]
    return handles


def _speed(axis: Axes, evidence: Evidence) -> None:
    for place, (case, contender, _) in enumerate(SPEEDS):
        (row,) = (
            row
            for row in evidence.bench
            if (row["case"], row["contender"]) == (case, contender) and row["best"]
        )
        speed = row["speedup"]["dense"]
        axis.barh(place, speed["median"], height=0.55, color=PALETTE[2], alpha=0.8)
        axis.plot([speed["q25"], speed["q75"]], [place] * 2, color="0.2", linewidth=1.5)
        axis.text(speed["q75"] + 0.2, place, f"{speed['median']:.1f}", va="center", size=10)
    axis.axvline(1, color="0.4", linewidth=1)
    axis.set_yticks(range(len(SPEEDS)), [words for *_, words in SPEEDS])
    axis.set_ylim(len(SPEEDS) - 0.5, -0.5)
    axis.grid(visible=False, axis="y")
    axis.margins(x=0.12)
    axis.set_title("Times as fast as dense PyTorch", size=10.5, loc="left")
