"""The idea in one stepped figure: an SVG that a small script walks through.

Which entries survive is computed by `meprop.select`, on a gradient made up for the picture. Without
the script all steps are listed and the last one is shown.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from meprop import TopK, select

RATIO = 0.05
SAMPLES, MAPS, SIDE = 2, 2, 10
CELL, GAP = 9, 12  # of the drawing
LEFT, TOP = 188, 38

STEPS = (
    ("Forward", "as always: the filters <i>W</i> turn the input <i>x</i> into feature maps "
     "<i>y</i>, and these into a loss <i>L</i>."),
    ("Backward", "the loss sends a gradient to every entry of <i>y</i>. Most of them are small."),
    ("Select", f"each feature map keeps the largest {RATIO:.0%} of its entries, over all images of "
     "the mini-batch. The others become zero."),
    ("Go on", "the few that are left are all that the filters and the layer below receive. With "
     "so many zeros, most of the work can be skipped."),
)  # fmt: skip


def gradient() -> Tensor:
    """A smooth field with a few peaks, as gradients at a convolution's output are."""
    noise = torch.randn(SAMPLES, MAPS, SIDE, SIDE, generator=torch.Generator().manual_seed(5))
    blurred = F.avg_pool2d(noise, 3, stride=1, padding=1)
    return blurred.sign() * blurred.abs() ** 1.5


def idea() -> str:
    """The figure with its steps (HTML in MyST)."""
    steps = "".join(f"<li><b>{title}:</b> {text}</li>" for title, text in STEPS)
    controls = (
        '<div class="idea-controls" hidden>'
        '<button type="button" class="idea-back" aria-label="Previous step">&#8592;</button>'
        '<span class="idea-count"></span>'
        '<button type="button" class="idea-next" aria-label="Next step">&#8594;</button></div>'
    )
    html = (
        f'<figure class="idea" data-step="{len(STEPS)}">{_svg()}'
        f'<figcaption><ol class="idea-steps">{steps}</ol>{controls}</figcaption></figure>'
    )
    return f"```{{raw}} html\n{html}\n```"


def _svg() -> str:
    parts = [
        '<svg viewBox="0 0 480 262" role="img" aria-label="Input, filters, feature maps and loss; '
        "of the gradient at the feature maps only the largest entries of each map are kept and "
        'passed back.">',
        *(_input(), _filters(), _maps(), _loss()),
        *(_arrow("forward", 82, 104, y) for y in (120, 140)),
        *(_arrow("forward", 152, 180, y) for y in (83, 197)),
        _arrow("forward", 386, 424, 133),
        _arrow("back arrive", 424, 386, 133),
        *(_arrow("back on", 180, 152, y) for y in (83, 197)),
        '<path class="back on line" d="M184 252C110 258 52 240 49 180"/>',
        '<path class="back on" d="M49 168l6 12h-12z"/>',
        "</svg>",
    ]
    return "".join(parts)


def _maps() -> str:
    grad = gradient()
    kept, _ = select(grad, TopK(RATIO))
    strength = grad.abs() / grad.abs().max()
    output = grad.roll(3, dims=-1).relu() / grad.max()  # some feature map, for the forward pass
    parts = []
    for sample in range(SAMPLES):
        x = LEFT + sample * (SIDE * CELL + GAP)
        parts.append(_text(x + SIDE * CELL / 2, TOP - 10, f"image {sample + 1}"))
        for channel in range(MAPS):
            y = TOP + channel * (SIDE * CELL + 24)
            if sample == 0:
                parts.append(_text(LEFT + SIDE * CELL + GAP / 2, y + SIDE * CELL + 16,
                                   f"feature map {channel + 1}"))  # fmt: skip
            side = SIDE * CELL
            parts.append(f'<rect class="sheet" x="{x}" y="{y}" width="{side}" height="{side}"/>')
            for row in range(SIDE):
                for column in range(SIDE):
                    at = sample, channel, row, column
                    name = "kept" if kept[at] else "dropped"
                    parts.append(
                        f'<rect class="{name}" x="{x + column * CELL}" y="{y + row * CELL}" '
                        f'width="{CELL - 1}" height="{CELL - 1}" '
                        f'style="--g:{float(strength[at]):.2f};--a:{float(output[at]):.2f}"/>'
                    )
    return f'<g class="maps">{"".join(parts)}</g>'


def _input() -> str:
    sheets = "".join(
        f'<rect class="sheet" x="{18 + shift}" y="{100 + shift}" width="56" height="56"/>'
        for shift in (6, 0)
    )
    return f'<g class="input">{sheets}{_text(49, 90, "input x")}</g>'


def _filters() -> str:
    parts = [_text(128, TOP - 10, "filters W")]
    for y in (68, 182):
        for row in range(3):
            for column in range(3):
                parts.append(
                    f'<rect class="tap" x="{108 + 13 * column}" y="{y + 13 * row}" '
                    'width="12" height="12"/>'
                )
    return f'<g class="filters">{"".join(parts)}</g>'


def _loss() -> str:
    return f'<g class="loss"><circle cx="448" cy="133" r="21"/>{_text(448, 138, "L")}</g>'


def _arrow(kind: str, start: float, end: float, y: float) -> str:
    """A horizontal arrow, with its tip drawn as a path: markers take no colour from their line."""
    back = 9 if end > start else -9
    return (
        f'<path class="{kind} line" d="M{start} {y}H{end - back}"/>'
        f'<path class="{kind}" d="M{end} {y}l{-back - back // 3} -5v10z"/>'
    )


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:g}" y="{y:g}">{text}</text>'
