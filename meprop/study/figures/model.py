"""The figures of a converted network: its densities layer by layer, and its first losses."""

from __future__ import annotations

from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from meprop import Seen
from meprop.study.style import PALETTE, Figure, subplots


def densities(seen: dict[str, Seen]) -> Figure | None:
    """The nonzero share of the gradient at each layer's output, before and after selection."""
    shown = {
        name: (100 * each.before, 100 * each.after)
        for name, each in seen.items()
        if each.before and each.after
    }
    if not shown:
        return None
    figure, axis = subplots(figsize=(8, 0.24 * len(shown) + 1.2))
    places = range(len(shown))
    before, after = zip(*shown.values(), strict=True)
    axis.hlines(places, after, before, color="0.7", linewidth=1)
    axis.plot(before, places, "o", color=PALETTE[1], label="before selection")
    axis.plot(after, places, "D", color=PALETTE[0], label="after", markersize=5)
    axis.set(xscale="log", xlabel="nonzero entries of the gradient (%)")
    axis.xaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_yticks(places, list(shown), size=9)
    axis.set_ylim(len(shown) - 0.5, -0.5)
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def losses(found: dict[str, list[float]]) -> Figure:
    """Loss against step."""
    figure, axis = subplots(figsize=(6, 3))
    for number, (name, values) in enumerate(found.items()):
        look = {"color": PALETTE[1 - number], "markeredgecolor": "white", "label": name}
        axis.plot(range(1, len(values) + 1), values, "o-", **look)
    axis.set(xlabel="step", ylabel="loss", ylim=(0, None))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend()
    return figure
