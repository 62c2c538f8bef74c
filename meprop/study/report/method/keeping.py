"""What a selection keeps of a real gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from torch import Tensor

from meprop import TopK, select

if TYPE_CHECKING:
    from pandas import DataFrame
from meprop.study.report.method.grouping import SCOPES


@dataclass(frozen=True)
class Kept:
    """What a rule leaves of a gradient; shares in percent."""

    before: float  # nonzero
    after: float  # nonzero
    norm: float  # of the gradient
    images: tuple[float, ...]  # which share of the surviving entries each image has


def kept(grad: Tensor, rule: TopK) -> Kept:
    """Apply a rule to a gradient.

    >>> kept(torch.tensor([[[[3.0, -4.0]]]]), TopK(0.5)).norm
    80.0
    """
    mask, _ = select(grad, rule)
    passed = grad * mask
    survivors = (passed != 0).flatten(1).sum(dim=1).double()
    shares = 100 * survivors / survivors.sum().clamp(min=1)
    return Kept(
        before=100 * float((grad != 0).double().mean()),
        after=100 * float((passed != 0).double().mean()),
        norm=100 * float(passed.double().norm() / grad.double().norm()),
        images=tuple(shares.tolist()),
    )


def kept_in_words(found: Mapping[str, Kept], content: Mapping[str, Any], rule: TopK) -> str:
    """What a rule leaves of the explorer's gradients, in a paragraph."""
    parts = [
        f"at {name} {values.before:.0f}% of the entries are not zero before the selection and "
        f"{values.after:.1f}% after it, with **{values.norm:.0f}% of the gradient's norm**"
        for name, values in found.items()
    ]
    images, first = content["images"], next(iter(found))
    order = sorted(range(len(images["labels"])), key=lambda i: -images["losses"][i])
    hard, easy = order[0], order[-1]
    guess = images["guesses"][hard]
    wrong = f", which it takes for a {guess}," if guess != images["labels"][hard] else ""
    shares = found[first].images
    return (
        f"With {100 * rule.ratio:g}% passed back (`scope={rule.scope!r}`), {'; '.join(parts)}. "
        f"Of the entries that survive at {first}, {shares[hard]:.0f}% belong to the "
        f"{images['labels'][hard]}{wrong} and {shares[easy]:.0f}% to the {images['labels'][easy]}, "
        f"of which it is surest. {_BALANCE[rule.scope]}"
    )


_MINI_BATCH = (
    "Ranking over the whole mini-batch, as the paper does, is also a choice between images: "
    "those that are classified well already hardly teach the convolutions anything."
)


_EACH_IMAGE = (
    "Every image has its own quota under this scope, whether or not there is anything to learn "
    "from it."
)


_BALANCE = {"map": _MINI_BATCH, "layer": _MINI_BATCH, "sample": _EACH_IMAGE, "mixed": _EACH_IMAGE}


def norm_curves(gradients: Mapping[str, Tensor], ratios: Sequence[float]) -> DataFrame:
    """Share of the gradient's norm that is kept, for each layer, scope and ratio."""
    import pandas

    return pandas.DataFrame(
        {"layer": layer, "scope": scope, "ratio": 100 * ratio}
        | {"norm": kept(grad, TopK(ratio, scope=scope)).norm}
        for (layer, grad), scope, ratio in product(gradients.items(), SCOPES, ratios)
    )
