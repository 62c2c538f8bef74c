"""What the figures of a study share: its lines, and the axis of the field it varies."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from meprop.study.report.ablations import Ablation, Row, number

# What the axis of a field says.
AXES = {"ratio": "share of the gradients passed back (%)", "decay": "decay of run_grad"}


def along(ablation: Ablation, field: str) -> dict[str, list[Row]]:
    """The rows by what else sets them apart, each list in the order of the field."""
    others = [name for name in ablation.study.varies if name != field]
    within = others == list(ablation.study.within)
    lines: dict[str, list[Row]] = {}
    for row in ablation.rows:
        lines.setdefault(row.group if within else row.treatment, []).append(row)
    return {
        name: sorted(rows, key=lambda row: number(row.config, field))
        for name, rows in lines.items()
    }


def scale(axis: Axes, ablation: Ablation, field: str) -> None:
    """The x axis of a field, with a tick for each of its values."""
    values = sorted({number(row.config, field) for row in ablation.rows})
    if field == "ratio":
        axis.set_xscale("log")
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
        axis.set_xlim(values[0] / 1.3, values[-1] * 1.3)
    else:
        axis.set_xlim(values[0] - 0.05 * values[-1], values[-1] * 1.05)
    axis.xaxis.set_major_locator(FixedLocator(values))
    axis.tick_params(axis="x", labelsize="small")
    axis.set(xlabel=AXES.get(field, field.replace("_", " ")))
