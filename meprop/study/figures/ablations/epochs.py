"""How the settings of a study learn: error and loss against epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas
import seaborn
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from meprop.study.report.ablations import Ablation
from meprop.study.style import PALETTE, Figure, logarithmic, subplots


def curves(ablation: Ablation) -> Figure | None:
    """Development error against epoch, a panel a group, a line a treatment."""
    rows = [
        {"epoch": epoch["epoch"], "group": row.group, "treatment": row.treatment, "seed": seed}
        | {"error": 100 - epoch["dev_accuracy"]}
        for row in ablation.done
        for seed, record in row.records.items()
        for epoch in record.history
    ]
    if not rows:
        return None
    table = pandas.DataFrame(rows)
    band = ("pi", 100) if table["seed"].nunique() > 1 else None
    label = "development error (%)"
    return _panels(ablation, table, "error", label, errorbar=band, linewidth=1.4)


def losses(ablation: Ablation) -> Figure | None:
    """Training and development loss against epoch; None for studies not about overfitting."""
    if not ablation.varies("train_size", "dropout") or not ablation.done:
        return None
    rows = [
        {"epoch": epoch["epoch"], "group": row.group, "treatment": row.treatment}
        | {"part": part, "loss": epoch[f"{part}_loss"]}
        for row in ablation.done
        for record in row.records.values()
        for epoch in record.history
        for part in ("train", "dev")
    ]
    parts = {"style": "part", "dashes": {"train": (2, 1.5), "dev": ""}}
    label = "mean cross-entropy"
    table = pandas.DataFrame(rows)
    return _panels(ablation, table, "loss", label, errorbar=None, linewidth=1.6, **parts)


def _panels(
    ablation: Ablation, table: pandas.DataFrame, value: str, label: str, **options: Any
) -> Figure:
    """A value against epoch, a panel a group, a line a treatment."""
    groups = [group for group in ablation.groups if group in set(table["group"])]
    figure, axes = subplots(1, len(groups), figsize=(9, 3.6), sharey=True, squeeze=False)
    treatments = _treatments(ablation)
    for axis, group in zip(axes[0], groups, strict=True):
        seaborn.lineplot(
            table[table["group"] == group],
            x="epoch",
            y=value,
            hue="treatment",
            hue_order=list(treatments),
            palette=treatments,
            ax=axis,
            **options,
        )
        axis.set(title=group, ylabel=label)
        logarithmic(axis, "{x:g}")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    _one_legend(figure, axes[0])
    return figure


def _treatments(ablation: Ablation) -> dict[str, Any]:
    """A colour for each; those along a scale go from dark to light."""
    names = list(dict.fromkeys(row.treatment for row in ablation.done))
    if len(names) > 4 and ablation.axis is not None:
        return dict(zip(names, seaborn.color_palette("viridis", len(names)), strict=True))
    return dict(zip(names, PALETTE, strict=False))


def _one_legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """The legend beside all panels instead of one in each."""
    entries: dict[str, Any] = {}
    for axis in axes:
        handles, names = axis.get_legend_handles_labels()
        entries |= dict(zip(names, handles, strict=True))
        if (legend := axis.get_legend()) is not None:
            legend.remove()
    for title in ("treatment", "part"):
        entries.pop(title, None)
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside right center",
        frameon=False,
        fontsize="small",
    )
