"""Kinds of figures that several notebooks draw."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from meprop.study.style import PALETTE


def forest(
    axis: Axes, found: pd.DataFrame, places: Sequence[float] | None = None,
    colour: object = PALETTE[0], marker: str = "o", label: str | None = None,
) -> None:  # fmt: skip
    """A point and its interval for each row (`estimate`, `low`, `high`), the first on top."""
    places = range(len(found)) if places is None else places
    half = [found.estimate - found.low, found.high - found.estimate]
    look: dict[str, Any] = {"color": colour, "markersize": 6, "linewidth": 1.6, "label": label}
    axis.errorbar(found.estimate, places, xerr=half, fmt=marker, **look)
    axis.grid(visible=False, axis="y")


def rows(axis: Axes, labels: Sequence[str]) -> None:
    """Name the rows of a forest; the first stands on top."""
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.5, -0.5)


def curves(
    axis: Axes, epochs: pd.DataFrame, column: str, hue: str, palette: dict[str, Any]
) -> None:
    """A line for each setting over the epochs: the mean over seeds, and from lowest to highest."""
    look: dict[str, Any] = {"palette": palette, "hue_order": list(palette), "linewidth": 1.4}
    sns.lineplot(epochs, x="epoch", y=column, hue=hue, errorbar=("pi", 100), **look, ax=axis)


def band(axis: Axes, margin: float) -> None:
    """The differences that do not matter."""
    axis.axvspan(-margin, margin, color="0.92", zorder=0)
    axis.axvline(0, color="0.4", linewidth=1)
