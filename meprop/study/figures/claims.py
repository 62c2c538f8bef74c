"""The figures of the ledger: how many claims hold, and the intervals that decide."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from meprop.study.report.claims import Judged
from meprop.study.report.claims.showing import tally
from meprop.study.report.claims.verdicts import NOT_SUPPORTED, NOT_TESTED, SUPPORTED, UNDECIDED
from meprop.study.style import PALETTE, Figure, subplots

VERDICT_COLOURS = {
    SUPPORTED: PALETTE[2],
    NOT_SUPPORTED: PALETTE[3],
    UNDECIDED: PALETTE[0],
    NOT_TESTED: (0.8, 0.8, 0.8),
}


def scoreboard(judged: Sequence[Judged]) -> Figure:
    """One bar, cut by verdict."""
    figure, axis = subplots(figsize=(9, 1.5))
    left = 0
    for name, count in tally(judged).items():
        if not count:
            continue
        axis.barh(0, count, left=left, color=VERDICT_COLOURS[name], edgecolor="white", linewidth=2)
        colour = "black" if name == NOT_TESTED else "white"
        axis.text(left + count / 2, 0, f"{count}", ha="center", va="center", color=colour, size=15)
        left += count
    axis.set_xlim(0, left)
    axis.set_axis_off()
    # A narrow part has no room for its name.
    handles = [Patch(color=VERDICT_COLOURS[name], label=name) for name in tally(judged)]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    return figure


def differences(judged: Sequence[Judged], margin: float) -> Figure | None:
    """Every difference of test accuracies that a claim rests on, with its interval."""
    rows = [
        (each, f"{_short(each.claim.key)}: {what}", found)
        for each in judged
        for what, found in each.verdict.differences.items()
        if found.n
    ]
    if not rows:
        return None
    figure, axis = subplots(figsize=(9, 0.36 * len(rows) + 1.3))
    axis.axvspan(-margin, margin, color="0.93", zorder=0)
    axis.axvline(0, color="0.4", linewidth=1)
    for place, (each, _, found) in enumerate(rows):
        colour = VERDICT_COLOURS[each.verdict.outcome]
        if found.known:
            axis.plot([found.low, found.high], [place] * 2, color=colour, linewidth=2)
        axis.plot(found.mean, place, "o", color=colour, mfc=colour if found.known else "white")
    axis.set_yticks(range(len(rows)), [label for _, label, _ in rows], size=9)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.grid(visible=False, axis="y")
    axis.set(xlabel="points of test accuracy")
    present = {each.verdict.outcome for each, _, _ in rows}
    handles = [
        Line2D([], [], marker="o", color=colour, label=name)
        for name, colour in VERDICT_COLOURS.items()
        if name in present
    ]
    if any(not found.known for *_, found in rows):
        handles.append(
            Line2D([], [], marker="o", linestyle="", mec="0.3", mfc="white", label="one seed")
        )
    figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False)
    return figure


def _short(key: str) -> str:
    """A claim in a word or three: `suffices-bn` is "suffices, BN"."""
    return key.replace("-bn", ", BN").replace("bn-", "BN ").replace("-", " ")
