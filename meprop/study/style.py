"""One palette and one style for every figure of the book."""

import json
import re
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from IPython import get_ipython
from IPython.display import Markdown
from matplotlib import figure as matplotlib_figure
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.rcsetup import cycler
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from meprop.study.network import LAYERS

if TYPE_CHECKING:
    from pandas import DataFrame

# Told apart by every kind of colour vision, and in print.
PALETTE = [
    to_rgb(f"#{colour}")
    for colour in (
        "0173b2", "de8f05", "029e73", "d55e00", "cc78bc",
        "ca9161", "fbafe4", "949494", "ece133", "56b4e9",
    )
]  # fmt: skip
# seaborn's `set_theme(style="whitegrid", palette="colorblind")`: importing it brings pandas and
# scipy along, a second for each of hundreds of runs.
STYLE = {
    "axes.labelsize": 12, "axes.linewidth": 1.25, "axes.prop_cycle": cycler(color=PALETTE),
    "axes.titlesize": 12, "font.sans-serif": ["Arial", "DejaVu Sans", "sans-serif"],
    "font.size": 12, "grid.linewidth": 1, "legend.fontsize": 11, "legend.frameon": True,
    "legend.title_fontsize": 12, "patch.edgecolor": "white", "patch.force_edgecolor": True,
    "xtick.labelsize": 11, "ytick.labelsize": 11, "figure.dpi": 72,
    "figure.constrained_layout.use": True,
}  # fmt: skip
# The same thing has the same colour on every page.
COLOURS = {
    **dict(zip(("train", "dev", "test"), PALETTE, strict=False)),
    **dict(zip(LAYERS, (PALETTE[i] for i in (3, 9, 4, 7)), strict=True)),
}
SHEETS: list[str | dict[str, Any]] = ["seaborn-v0_8-whitegrid", STYLE]


DOTS = 160  # an inch, of which a page shows 80: twice the width


class Figure(matplotlib_figure.Figure):
    """A figure that a notebook stores small, and the book stacks on a phone, panel by panel."""

    def small_png(self) -> tuple[bytes, dict[str, int]]:
        """The picture with 256 colours; rare ones, such as a thin line's, stay as they are."""
        # A white ground stays legible on a dark page.
        self.set(dpi=DOTS, facecolor="white")
        canvas = FigureCanvasAgg(self)
        canvas.draw()  # once: `savefig` goes over everything twice to find its place
        image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        image = image.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        packed, about = BytesIO(), PngInfo()
        about.add_text("panels", json.dumps(self.panels()))
        image.save(packed, format="png", optimize=True, dpi=(DOTS, DOTS), pnginfo=about)
        return packed.getvalue(), {"width": image.width // 2, "height": image.height // 2}

    def panels(self) -> list[list[int]]:
        """What a phone shows one below the other: left, top, right and bottom, in pixels.

        A panel without labels of its own on a shared y axis also has from where to where they
        stand. A legend of the whole figure is a panel too.
        """
        if len(self.axes) < 2:
            return []
        found, height = [], self.bbox.height
        boxes: dict[Any, Any] = {it: it.get_tightbbox() for it in (*self.legends, *self.axes)}
        for part, box in boxes.items():
            labels = []
            if isinstance(part, Axes) and not any(
                it.get_visible() for it in part.get_yticklabels()
            ):
                alike = part.get_shared_y_axes().get_siblings(part)
                row = [axis for axis in alike if abs(axis.bbox.y0 - part.bbox.y0) < 1]
                first = min(row, key=lambda axis: axis.bbox.x0)
                labels = [boxes[first].x0, first.bbox.x0] if first is not part else []
            found.append([*map(int, (box.x0, height - box.y1, box.x1, height - box.y0, *labels))])
        return found


def set_style() -> None:
    """Use the book's style for all figures from here on."""
    plt.style.use(SHEETS)
    if (shell := get_ipython()) is not None:
        shell.display_formatter.formatters["image/png"].for_type(Figure, Figure.small_png)


def subplots(*arguments: Any, **options: Any) -> tuple[Figure, Any]:
    """As pyplot's, closed already: nobody but the caller shows it."""
    figure, axes = plt.subplots(*arguments, FigureClass=Figure, **options)
    plt.close(figure)
    return figure, axes


def table(
    frame: "DataFrame",
    form: str | Sequence[str] | Mapping[str, str] = "z.2f",
    index: bool = False,
) -> Markdown:
    """A DataFrame as a Markdown table, whose links and formulas a page resolves.

    `form` is Python's format of its numbers: one for all columns, one each, or by name for some and
    the usual one for the others. What is missing stays empty. What would be an HTML tag is shown as
    it is written: a record may come from anywhere.
    """
    if isinstance(form, Mapping):
        form = [""] * index + [form.get(name, "z.2f") for name in frame]
    known = frame.astype(object).where(frame.notna(), None)
    text = known.to_markdown(index=index, floatfmt=form, missingval="")
    return Markdown(re.sub("<(?=[A-Za-z/!?])", "&lt;", text))


def logarithmic(axes: Axes, label: str, which: str = "y", subs: Sequence[int] = (1, 2, 5)) -> None:
    """A logarithmic axis with plain numbers, at these multiples of powers of ten."""
    axis = getattr(axes, f"{which}axis")
    axes.set(**{f"{which}scale": "log"})
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(StrMethodFormatter(label))
